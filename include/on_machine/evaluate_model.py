"""Measure a Hugging Face model on held-out dialogues, and let it answer a few prompts.

The loss counts exactly the tokens that MaxText counts in SFT with `sft_train_on_completion_only`: see
maxtext/input_pipeline/input_pipeline_utils.py (apply_chat_template, SFTPromptMasking, ShiftData).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Messages = list[dict[str, str]]


def split_round(tokenizer: Any, messages: Messages) -> tuple[list[int], list[int]]:
    """Return the tokens of one round's prompt, which ends where the generation prompt does, and completion.

    MaxText decodes both halves and tokenizes them again, without a BOS of the tokenizer's own; so does this.
    """
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    prompt = tokenizer.apply_chat_template(
        messages[:-1], tokenize=True, return_dict=False, add_generation_prompt=True
    )
    common = next((i for i, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), len(prompt))
    halves = [tokenizer.decode(part, skip_special_tokens=False) for part in (whole[:common], whole[common:])]
    first, second = (tokenizer(half)["input_ids"] for half in halves)
    return first, second


def encode_dialogue(tokenizer: Any, messages: Messages, max_length: int) -> tuple[list[int], list[bool]]:
    """Return a dialogue's tokens, cut to `max_length`, and which of them count as targets."""
    tokens: list[int] = []
    counted: list[bool] = []
    round_messages: Messages = []
    ignored = {tokenizer.pad_token_id, tokenizer.bos_token_id}
    for message in messages:
        round_messages.append(message)
        if message["role"] == "assistant":
            prompt, completion = split_round(tokenizer, round_messages)
            tokens += prompt + completion
            counted += [False] * len(prompt) + [token not in ignored for token in completion]
            round_messages = []
    return tokens[:max_length], counted[:max_length]


def measure_loss(model: Any, tokenizer: Any, heldout: list[Messages], max_length: int) -> dict[str, Any]:
    """Return the mean loss of the counted tokens, its perplexity, and how much was counted."""
    total_loss, total_tokens = 0.0, 0
    for messages in heldout:
        tokens, counted = encode_dialogue(tokenizer, messages, max_length)
        targets = [position for position in range(1, len(tokens)) if counted[position]]
        if not targets:
            continue
        before = torch.tensor(targets) - 1
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens]), logits_to_keep=before).logits[0].float()
        expected = torch.tensor([tokens[position] for position in targets])
        total_loss += float(torch.nn.functional.cross_entropy(logits, expected, reduction="sum"))
        total_tokens += len(targets)
    if total_tokens == 0:
        raise SystemExit(
            f"no token of the {len(heldout)} held-out dialogues counts within {max_length} tokens"
        )
    loss = total_loss / total_tokens
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": total_tokens, "examples": len(heldout)}


def answer_prompt(model: Any, tokenizer: Any, prompt: str, max_new_tokens: int) -> dict[str, Any]:
    """Return the likeliest answer to a prompt, and whether the model ended it by itself."""
    messages = [{"role": "user", "content": prompt}]
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(
            **encoded, max_new_tokens=max_new_tokens, do_sample=False, top_k=None, top_p=None
        )
    answer = output[0, encoded["input_ids"].shape[1] :].tolist()
    eos = model.generation_config.eos_token_id
    ends = set(eos if isinstance(eos, list) else [eos])
    return {
        "prompt": prompt,
        "answer": tokenizer.decode(answer, skip_special_tokens=True).strip(),
        "stopped": bool(answer) and answer[-1] in ends,
    }


def read_heldout(path: Path) -> list[Messages]:
    """Return the dialogues of a JSONL file with a `messages` column."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["messages"] for line in file if line.strip()]


def main() -> None:
    """Evaluate a model and write the figures and the answers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face directory")
    parser.add_argument("--heldout", type=Path, help="JSONL with a `messages` column; no loss without it")
    parser.add_argument("--max-length", type=int, required=True, help="the training's max_target_length")
    parser.add_argument("--prompts", type=Path, required=True, help="a JSON list of strings")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, help="CPU threads; PyTorch's choice without it")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(
        arguments.model, local_files_only=True, add_bos_token=False, add_eos_token=False
    )
    model = AutoModelForCausalLM.from_pretrained(arguments.model, local_files_only=True, dtype=torch.float32)
    model.eval()
    result: dict[str, Any] = {"loss": None, "perplexity": None, "tokens": 0, "examples": 0}
    if arguments.heldout:
        result = measure_loss(model, tokenizer, read_heldout(arguments.heldout), arguments.max_length)
    prompts = json.loads(arguments.prompts.read_text(encoding="utf-8"))
    result["samples"] = [
        answer_prompt(model, tokenizer, prompt, arguments.max_new_tokens) for prompt in prompts
    ]
    scratch = arguments.out.with_name(f".{arguments.out.name}.tmp")
    scratch.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(arguments.out)
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
