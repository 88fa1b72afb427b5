"""A finished export is the source's model, trained: anything else is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from on_machine.finish_export import (
    ExportMismatchError,
    TensorEntry,
    compare_headers,
    count_changed,
    count_not_finite,
    finish_export,
    main,
    read_header,
    read_tensors,
)

Weights = dict[str, NDArray[Any]]


def make_weights(value: float = 1.0) -> Weights:
    return {
        "model.embed_tokens.weight": np.full((8, 4), value, dtype=np.float32),
        "model.norm.weight": np.full((4,), value, dtype=np.float32),
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    save_file(make_weights(), directory / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (directory / name).write_text(f"the source's {name}")
    (directory / "config.json").write_text('{"rope_theta": 1000000.0}')
    (directory / "NOTICE").write_text("terms")
    (directory / "README.md").write_text("the source's model card")
    return directory


def export(tmp_path: Path, weights: Weights) -> Path:
    directory = tmp_path / "exported"
    directory.mkdir()
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text('{"rope_theta": 10000.0}')
    (directory / "tokenizer_config.json").write_text("MaxText's")
    return directory


def finish(tmp_path: Path, source: Path, weights: Weights) -> dict[str, Any]:
    return finish_export(export(tmp_path, weights), source, tmp_path / "model")


def test_trained_weights_come_with_the_sources_files(tmp_path: Path, source: Path) -> None:
    report = finish(tmp_path, source, make_weights(2.0))
    model = tmp_path / "model"
    for name in ("config.json", "tokenizer_config.json", "chat_template.jinja", "NOTICE"):
        assert (model / name).read_bytes() == (source / name).read_bytes()
    assert not (model / "README.md").exists()
    assert report["tensors"] == 2
    assert report["parameters"] == 36
    assert report["bytes"] == 144
    assert report["changed_tensors"] == 2
    assert json.loads((model / "export_report.json").read_text()) == report


def test_one_changed_value_is_counted_as_one(tmp_path: Path, source: Path) -> None:
    weights = make_weights()
    weights["model.norm.weight"][2] = 5.0
    report = finish(tmp_path, source, weights)
    assert (report["changed_tensors"], report["changed_parameters"]) == (1, 1)


def test_a_missing_tensor_is_named(tmp_path: Path, source: Path) -> None:
    weights = make_weights(2.0)
    del weights["model.norm.weight"]
    with pytest.raises(ExportMismatchError, match=r"missing: model\.norm\.weight"):
        finish(tmp_path, source, weights)


def test_an_unexpected_tensor_is_named(tmp_path: Path, source: Path) -> None:
    weights = make_weights(2.0) | {"lm_head.weight": np.zeros((8, 4), dtype=np.float32)}
    with pytest.raises(ExportMismatchError, match=r"unexpected: lm_head\.weight"):
        finish(tmp_path, source, weights)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path, source: Path) -> None:
    weights = make_weights(2.0) | {"model.embed_tokens.weight": np.zeros((4, 8), dtype=np.float32)}
    with pytest.raises(ExportMismatchError, match=r"shape: .*embed_tokens.* \[4, 8\].* \[8, 4\]"):
        finish(tmp_path, source, weights)


def test_a_wrong_dtype_is_named_with_both_dtypes(tmp_path: Path, source: Path) -> None:
    weights = make_weights(2.0) | {"model.norm.weight": np.zeros((4,), dtype=np.float16)}
    with pytest.raises(ExportMismatchError, match=r"dtype: model\.norm\.weight is F16, the source's is F32"):
        finish(tmp_path, source, weights)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_refused(tmp_path: Path, source: Path, bad: float) -> None:
    weights = make_weights(2.0)
    weights["model.embed_tokens.weight"][3, 1] = bad
    with pytest.raises(ExportMismatchError, match=r"embed_tokens\.weight: 1 of 32 values"):
        finish(tmp_path, source, weights)


def test_weights_that_training_did_not_change_are_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ExportMismatchError, match="changed nothing"):
        finish(tmp_path, source, make_weights())


def test_what_the_conversion_rounds_is_no_training(tmp_path: Path, source: Path) -> None:
    weights = make_weights()
    weights["model.embed_tokens.weight"] *= 1 + 2**-8
    weights["model.norm.weight"] += 2**-7
    with pytest.raises(ExportMismatchError, match="but for rounding"):
        finish(tmp_path, source, weights)


def test_bfloat16_is_compared_by_value_and_not_by_bits() -> None:
    entry = TensorEntry(Path("model.safetensors"), "BF16", (1, 4), 0)
    one, next_to_one, two, minus_one = 0x3F80, 0x3F81, 0x4000, 0xBF80
    before = np.array([one, one, one, one], dtype=np.uint16)
    after = np.array([one, next_to_one, two, minus_one], dtype=np.uint16)
    assert count_changed(entry, after, before) == 2


def test_bfloat16_infinities_and_nans_are_seen_in_their_bits() -> None:
    one, infinity, minus_infinity, nan, largest = 0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F
    bits = np.array([one, infinity, minus_infinity, nan, largest], dtype=np.uint16)
    assert count_not_finite("BF16", bits) == 3


def test_a_file_cut_short_is_refused(tmp_path: Path, source: Path) -> None:
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ExportMismatchError, match="where its header says"):
        read_header(path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportMismatchError, match="holds no safetensors"):
        read_tensors(tmp_path)


def test_tensors_of_several_shards_are_one_model(tmp_path: Path, source: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, (name, values) in enumerate(make_weights().items()):
        save_file({name: values}, shards / f"model-{number}.safetensors")
    assert compare_headers(read_tensors(source), read_tensors(shards)) == []


def test_nothing_is_written_when_the_export_is_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ExportMismatchError):
        finish(tmp_path, source, make_weights())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "source"]


def test_an_earlier_export_is_replaced_whole(tmp_path: Path, source: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stale.safetensors").write_text("")
    finish(tmp_path, source, make_weights(2.0))
    assert not (tmp_path / "model" / "stale.safetensors").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_command_exits_with_the_reason(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = export(tmp_path, make_weights())
    paths = ["--exported", str(exported), "--source", str(source), "--out", str(tmp_path / "model")]
    monkeypatch.setattr("sys.argv", ["finish_export.py", *paths])
    with pytest.raises(SystemExit, match=r"Nothing was written to .*model: every exported weight equals"):
        main()
