"""Build a tiny Gemma 3 with random weights and a tokenizer trained on the spot, to try the pipeline out.

It has the shape of the real ones (six layers, the last of them with global attention) and about 1.3 million
parameters, so that every command is fast and what it learns can be seen within a few dozen steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

# The ids of the first four are Gemma's.
SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
VOCABULARY = 1024
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 384,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "max_position_embeddings": 1024,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 32,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0.dev0",
    "vocab_size": VOCABULARY,
}
GENERATION_CONFIG = {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0}
TOKENIZER_CONFIG: dict[str, Any] = {
    "add_bos_token": True,
    "bos_token": "<bos>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<eos>",
    "model_max_length": CONFIG["max_position_embeddings"],
    "pad_token": "<pad>",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
}
CHAT_TEMPLATE = """{{ bos_token }}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""


def read_texts(corpus: Path) -> Iterator[str]:
    """Yield the text of every message in a JSONL file with a `messages` column."""
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            for message in json.loads(line)["messages"]:
                yield f"{message['role']}\n{message['content']}\n"


def train_tokenizer(corpus: Path) -> Tokenizer:
    """Train a byte-level BPE tokenizer; any text can be encoded, whatever the corpus is."""
    tokenizer = Tokenizer(models.BPE(unk_token=TOKENIZER_CONFIG["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_texts(corpus), trainer)
    return tokenizer


def list_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each of Gemma3ForCausalLM's tensors."""
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "pre_feedforward_layernorm": (hidden,),
        "post_feedforward_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    for index in range(CONFIG["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (hidden,)}


def draw_weights(seed: int) -> dict[str, NDArray[Any]]:
    """Return random matrices and neutral norms (Gemma's scale by one plus their weight), in bfloat16."""
    generator = np.random.default_rng(seed)
    return {
        name: (
            generator.normal(0.0, CONFIG["initializer_range"], shape) if len(shape) > 1 else np.zeros(shape)
        ).astype(ml_dtypes.bfloat16)
        for name, shape in list_shapes().items()
    }


def build_model(corpus: Path, out: Path, seed: int) -> int:
    """Write the Hugging Face directory into `out` and return the number of parameters."""
    weights = draw_weights(seed)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    train_tokenizer(corpus).save(str(out / "tokenizer.json"))
    files = {"config": CONFIG, "generation_config": GENERATION_CONFIG, "tokenizer_config": TOKENIZER_CONFIG}
    for name, content in files.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return sum(values.size for values in weights.values())


def main() -> None:
    """Build the directory beside its place and rename it there when it is complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="JSONL with a `messages` column")
    parser.add_argument("--out", type=Path, required=True, help="the Hugging Face directory to make")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out: Path = arguments.out
    if out.exists():
        parser.error(f"{out} exists already; remove it to build it again")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        parameters = build_model(arguments.corpus, model, arguments.seed)
        model.rename(out)
    print(f"A random Gemma 3 of {parameters:,} parameters is in {out}")


if __name__ == "__main__":
    main()
