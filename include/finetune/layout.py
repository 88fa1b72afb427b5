"""Where things stand on a machine and in the store, as the paths that a stage's commands name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune import settings
from finetune.store import Store
from finetune.store.store import safe_name

MACHINE_HOME = "/var/lib/finetune"


@dataclass(frozen=True)
class Layout:
    """The folders of one run.

    Args:
        include: The product's ``include/`` on the machine (scripts and locked requirements).
        cache: Shared artifacts on the machine: environments, models, converted checkpoints, compilations.
        run: What belongs to this run, in the store.
    """

    include: str
    cache: str
    run: str

    @classmethod
    def for_run(cls, store_url: str, recipe_name: str, run_id: str, *, local: bool) -> Layout:
        """Return the layout of a run: a local machine works in the store itself, others have a cache of their own."""
        if local:
            store = Store(store_url)
            cache = str(store.root / "cache")
            return cls(str(settings.INCLUDE_DIR), cache, str(store.run(recipe_name, run_id).root))
        run = f"{store_url.rstrip('/')}/runs/{recipe_name}/{safe_name(run_id)}"
        return cls(f"{MACHINE_HOME}/include", f"{MACHINE_HOME}/cache", run)

    def script(self, name: str) -> str:
        """Return the path of a script of ``on_machine/``."""
        return f"{self.include}/on_machine/{name}"

    def requirements(self, name: str) -> str:
        """Return the path of a requirements file."""
        return f"{self.include}/requirements/{name}"

    def cached(self, kind: str, digest: str) -> str:
        """Return where a shared artifact of this kind and content digest stands, or will stand."""
        return f"{self.cache}/{kind}/{digest}"


def content_digest(*parts: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of JSON values; a Path stands for the file's bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else json.dumps(part, sort_keys=True).encode()
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()[:16]
