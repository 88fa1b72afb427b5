"""Run records, events, logs and the shared caches."""

from finetune.store.records import JobRef, RunRecord, StageRecord, StageState
from finetune.store.store import RunStore, Store

__all__ = ["JobRef", "RunRecord", "RunStore", "StageRecord", "StageState", "Store"]
