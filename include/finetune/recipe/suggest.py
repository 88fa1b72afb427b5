"""Find what a person meant by a name that does not exist."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable

_SYNONYMS = {
    "batch_size": "per_device_batch_size",
    "dataset_source": "source",
    "epochs": "steps",
    "gate": "min_heldout_improvement",
    "lr": "learning_rate",
    "max_length": "max_target_length",
    "max_seq_length": "max_target_length",
    "max_steps": "steps",
    "model_name": "maxtext_name",
    "num_steps": "steps",
    "path": "directory",
    "repo": "hub",
    "save_steps": "checkpoint_period",
    "seq_len": "max_target_length",
    "seq_length": "max_target_length",
    "sequence_length": "max_target_length",
    "test_split": "heldout_split",
    "type": "kind",
    "eval_split": "heldout_split",
    "zone": "zones",
    "cron": "schedule",
    "machine": "machines",
}
"""Names that other trainers and tools use for the same thing."""

_MAX_LISTED = 24
_MIN_BEGINNING = 3
_SECRET_NAME = re.compile(r"(?:.*_)?(?:token|password|secret|key|credentials?)", re.IGNORECASE)

_brief = reprlib.Repr(maxstring=80, maxlist=6, maxdict=4, maxlevel=2, maxother=80)


def find_nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is spelled most like this one, or means the same; else ``None``."""
    names = list(allowed)
    synonym = _SYNONYMS.get(name.lower())
    if synonym in names:
        return synonym
    by_lower = {candidate.lower().replace("_", "-"): candidate for candidate in names}
    beginnings = [candidate for candidate in by_lower if candidate.startswith(name.lower().replace("_", "-"))]
    if len(name) >= _MIN_BEGINNING and len(beginnings) == 1:
        return by_lower[beginnings[0]]
    matches = difflib.get_close_matches(name.lower().replace("_", "-"), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return `` Did you mean `x`?`` with a leading space, or nothing."""
    nearest = find_nearest(name, allowed) if isinstance(name, str) else None
    return f" Did you mean `{nearest}`?" if nearest else ""


def list_names(names: Iterable[str]) -> str:
    """Return names joined by commas, the first few of a long list."""
    ordered = list(names)
    rest = len(ordered) - _MAX_LISTED
    return ", ".join(ordered[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def show_value(value: object, field: str = "") -> str:
    """Return a value as a short text for a message; never that of a field which may hold a secret."""
    if _SECRET_NAME.fullmatch(field):
        return "a value that is not shown here"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return _brief.repr(value)
