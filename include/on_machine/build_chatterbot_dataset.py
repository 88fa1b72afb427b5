"""Build a chat dataset from the English dialogues of PyPI's chatterbot-corpus, read as data.

Writes `train.jsonl` and `heldout.jsonl`, one `{"messages": [...]}` a line. A hash of its opening question
decides which of the two a dialogue belongs to, so that no question that is held out is ever trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Dialogue = tuple[str, ...]

# Those in which a robot talks about itself and the world, kindly and in short sentences. Of the others,
# tech_support repeats some twenty questions a thousand times, coding is long listings, and the rest is rude
# or has no voice.
CATEGORIES = (
    "ai", "botprofile", "computers", "conversations", "emotion", "food", "greetings", "literature", "money",
    "science",
)  # fmt: skip
# Here the lines after the first are different answers to it; elsewhere they are the turns of a conversation.
ALTERNATIVE_ANSWERS = frozenset({"computers", "emotion", "psychology"})


def read_category(path: Path) -> list[list[str]]:
    """Return the conversations of one corpus file as lists of lines.

    BaseLoader makes nothing but text, lists and mappings: the answers "no" and "1984" stay text.
    """
    content: Any = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    return [list(conversation) for conversation in content["conversations"]]


def clean_line(line: str) -> str:
    """Return the line on one row, without the quotes that stray around some of the corpus's answers."""
    text = " ".join(line.split())
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    return text[:1].upper() + text[1:]


def split_dialogues(lines: list[str], alternatives: bool) -> Iterator[Dialogue]:
    """Yield dialogues that end with an answer: one for each alternative answer, or one of all turns."""
    cleaned = [clean_line(line) for line in lines]
    if alternatives:
        yield from ((cleaned[0], answer) for answer in cleaned[1:] if answer)
    elif all(cleaned) and len(cleaned) > 1:
        yield tuple(cleaned[: len(cleaned) // 2 * 2])


def read_dialogues(corpus: Path, categories: list[str]) -> list[Dialogue]:
    """Return the distinct dialogues of the categories, in the order of the corpus."""
    dialogues: dict[Dialogue, None] = {}
    for category in categories:
        for lines in read_category(corpus / f"{category}.yml"):
            for dialogue in split_dialogues(lines, category in ALTERNATIVE_ANSWERS):
                dialogues[dialogue] = None
    return list(dialogues)


def normalize_question(question: str) -> str:
    """Return what is left of a question without case, punctuation and spacing."""
    return "".join(character for character in question.lower() if character.isalnum())


def is_held_out(dialogue: Dialogue, heldout_percent: int) -> bool:
    """Tell by a hash of the opening question whether a dialogue is held out."""
    digest = hashlib.sha256(normalize_question(dialogue[0]).encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100 < heldout_percent


def format_row(dialogue: Dialogue) -> str:
    """Return the dialogue as one line of JSON."""
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": line} for turn, line in enumerate(dialogue)]
    return json.dumps({"messages": messages}, ensure_ascii=False)


def write_dataset(dialogues: list[Dialogue], out: Path, heldout_percent: int) -> dict[str, int]:
    """Write both files into `out` and return how many dialogues each holds."""
    heldout = [dialogue for dialogue in dialogues if is_held_out(dialogue, heldout_percent)]
    train = [dialogue for dialogue in dialogues if not is_held_out(dialogue, heldout_percent)]
    for name, part in (("train", train), ("heldout", heldout)):
        text = "".join(format_row(dialogue) + "\n" for dialogue in part)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return {"train": len(train), "heldout": len(heldout)}


def main() -> None:
    """Build the dataset beside its place and rename it there when it is complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="where chatterbot-corpus is unpacked")
    parser.add_argument("--out", type=Path, required=True, help="the directory to make")
    parser.add_argument("--heldout-percent", type=int, default=10, choices=range(1, 51), metavar="1..50")
    parser.add_argument("--categories", nargs="+", default=list(CATEGORIES))
    arguments = parser.parse_args()
    out: Path = arguments.out
    if out.exists():
        parser.error(f"{out} exists already; remove it to build it again")
    corpus = arguments.packages / "chatterbot_corpus" / "data" / "english"
    known = sorted(path.stem for path in corpus.glob("*.yml"))
    unknown = sorted(set(arguments.categories) - set(known))
    if unknown:
        parser.error(f"no such category: {', '.join(unknown)}; {corpus} has: {', '.join(known) or 'nothing'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        dataset = Path(scratch) / "dataset"
        dataset.mkdir()
        counts = write_dataset(
            read_dialogues(corpus, arguments.categories), dataset, arguments.heldout_percent
        )
        dataset.rename(out)
    print(f"{counts['train']} dialogues to train on and {counts['heldout']} held out are in {out}")


if __name__ == "__main__":
    main()
