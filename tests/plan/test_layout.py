"""Where things stand, and what their names are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune import settings
from finetune.layout import Layout, content_digest


def test_a_local_machine_works_in_the_store_itself(tmp_path: Path) -> None:
    layout = Layout.for_run(f"file://{tmp_path}", "small", "manual__2026-01-02T03:04:05+00:00", local=True)
    assert layout.cached("models", "abc") == f"{tmp_path}/cache/models/abc"
    assert layout.run == f"{tmp_path}/runs/small/manual__2026-01-02T03-04-05-00-00"
    assert layout.script("job.py") == str(settings.ON_MACHINE_DIR / "job.py")
    assert layout.requirements("x.txt") == str(settings.REQUIREMENTS_DIR / "x.txt")


def test_another_machine_has_a_cache_of_its_own_and_writes_its_runs_to_the_store() -> None:
    layout = Layout.for_run("gs://bucket/folder/", "small", "r+1", local=False)
    assert layout.cached("models", "abc") == "/var/lib/finetune/cache/models/abc"
    assert layout.run == "gs://bucket/folder/runs/small/r-1"
    assert layout.script("job.py") == "/var/lib/finetune/include/on_machine/job.py"


def test_a_digest_is_the_same_for_the_same_content_only(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("same")
    second.write_text("same")
    assert content_digest(["a", {"x": 1, "y": 2}], first) == content_digest(["a", {"y": 2, "x": 1}], second)
    second.write_text("other")
    assert content_digest(first) != content_digest(second)


@pytest.mark.parametrize(
    ("one", "other"), [(("ab", "c"), ("a", "bc")), ((["a"], []), ([], ["a"])), (("1",), (1,)), ((None,), ())]
)
def test_a_digest_tells_apart_what_only_looks_alike(
    one: tuple[object, ...], other: tuple[object, ...]
) -> None:
    assert content_digest(*one) != content_digest(*other)


def test_a_digest_stays_the_same_from_process_to_process() -> None:
    assert content_digest("stable") == "5dcc6f954b95c3fc"
