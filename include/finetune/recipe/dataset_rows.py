"""Turn one row of a dataset into a conversation, or say why MaxText could not train on it.

MaxText swallows what goes wrong in its data pipeline and ends the run early with exit code 0, so every rule
of its chat pipeline (``input_pipeline_utils.apply_chat_template``, ``combine_columns``) is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finetune.recipe.suggest import list_names, show_value

ROLES = ("system", "user", "assistant")
Message = dict[str, str]


@dataclass(frozen=True)
class Conversation:
    """Messages of which a system message may be the first, and user and assistant take turns from then on."""

    messages: tuple[Message, ...]

    def first_prompt(self) -> str:
        """Return the first user message, spaces and case made equal."""
        text = next(message["content"] for message in self.messages if message["role"] == "user")
        return " ".join(text.split()).casefold()


class RowError(ValueError):
    """A row cannot be trained on; the text says why, in words that follow a file's name and line."""


class MissingColumn(RowError):
    """A row has no such column; the other rows of its file have most often none either."""


def read_row(row: object, columns: tuple[str, ...]) -> Conversation:
    """Return the conversation that a row's columns hold.

    Raises:
        RowError: The trainer could not read the row.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"is {show_value(row)}; a row is an object with the column {' and '.join(columns)}")
    for column in columns:
        if column not in row:
            raise MissingColumn(f"has no column `{column}` (columns there: {list_names(map(str, row))})")
    conversation = Conversation(tuple(_READERS[columns](row)))
    _check_turns(conversation.messages)
    return conversation


def _read_messages(row: Mapping[str, Any]) -> list[Message]:
    return _read_list(row["messages"], "messages")


def _read_prompt_completion(row: Mapping[str, Any]) -> list[Message]:
    """Return ``prompt`` and ``completion`` as one conversation.

    Lists of equal length are woven together, as MaxText does; else the completion follows the prompt.
    """
    prompts = _read_texts_or_list(row["prompt"], "prompt", "user")
    completions = _read_texts_or_list(row["completion"], "completion", "assistant")
    if len(prompts) != len(completions):
        return [*prompts, *completions]
    return [message for pair in zip(prompts, completions, strict=True) for message in pair]


def _read_question_answer(row: Mapping[str, Any]) -> list[Message]:
    return [
        {"role": "user", "content": _check_text(row["question"], "question")},
        {"role": "assistant", "content": _check_text(row["answer"], "answer")},
    ]


_READERS: Mapping[tuple[str, ...], Callable[[Mapping[str, Any]], list[Message]]] = {
    ("messages",): _read_messages,
    ("prompt", "completion"): _read_prompt_completion,
    ("question", "answer"): _read_question_answer,
}


def _read_texts_or_list(value: object, column: str, role: str) -> list[Message]:
    if isinstance(value, str):
        return [{"role": role, "content": _check_text(value, column)}]
    return _read_list(value, column)


def _read_list(value: object, column: str) -> list[Message]:
    """Return a list of messages with nothing but their role and content."""
    if not isinstance(value, list) or not value:
        raise RowError(
            f"has {show_value(value)} in `{column}`; needs a list of messages with role and content"
        )
    messages: list[Message] = []
    for index, message in enumerate(value):
        where = f"{column}[{index}]"
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise RowError(f"has {show_value(message)} in {where}; a message needs role and content")
        if message["role"] not in ROLES:
            raise RowError(
                f"has the role {show_value(message['role'])} in {where}; allowed: {', '.join(ROLES)}"
            )
        content = _check_text(message["content"], f"{where}.content")
        messages.append({"role": message["role"], "content": content})
    return messages


def _check_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"has {show_value(value)} in {where}, which is no text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RowError(f"has half a surrogate pair in {where}, which is no character") from error
    return value


def _check_turns(messages: tuple[Message, ...]) -> None:
    """Check that a system message is first, and that user and assistant take turns."""
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise RowError(
            f"has a system message as number {roles.index('system', 1) + 1}; it may only be the first"
        )
    turns = roles[1:] if roles[0] == "system" else roles
    if "assistant" not in turns:
        raise RowError("has no assistant message, so there is nothing to learn")
    if turns[0] == "assistant":
        raise RowError("has an assistant message before any user message")
    offset = len(roles) - len(turns)
    for index in range(1, len(turns)):
        if turns[index] == turns[index - 1]:
            number = index + offset
            raise RowError(
                f"has two {turns[index]} messages in a row (numbers {number} and {number + 1}); join them"
            )
    if not any(message["content"].strip() for message in messages if message["role"] == "assistant"):
        raise RowError("has only empty assistant messages, so there is nothing to learn")
