"""The launcher runs MaxText's modules without their killing strangers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from on_machine import maxtext_launcher
from on_machine.maxtext_launcher import KILLER, disarm_killer, find_model_name, rename_results, rename_tensors

KILLING = f"""
import os

def {KILLER}():
    os.kill(VICTIM, 9)

def close():
    {KILLER}()
"""


def load_module(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_disarmed_killer_leaves_a_stranger_alive(tmp_path: Path) -> None:
    module = load_module(tmp_path / "dataloading.py", KILLING)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        module.__dict__["VICTIM"] = stranger.pid
        disarm_killer(module)
        module.close()
        stranger.communicate(b"\n", timeout=30)
    assert stranger.returncode == 0


def test_a_killer_that_has_moved_away_is_an_error(tmp_path: Path) -> None:
    module = load_module(tmp_path / "moved.py", KILLING.replace(KILLER, "_renamed"))
    with pytest.raises(SystemExit, match=f"has no function {KILLER}"):
        disarm_killer(module)


def test_a_second_killer_is_an_error(tmp_path: Path) -> None:
    module = load_module(tmp_path / "second.py", KILLING + "\ndef sweep():\n    os.kill(VICTIM, 9)\n")
    with pytest.raises(SystemExit, match="also kills processes outside"):
        disarm_killer(module)


def test_the_modules_arguments_arrive_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "maxtext" / "input_pipeline"
    package.mkdir(parents=True)
    (tmp_path / "maxtext" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "multihost_dataloading.py").write_text(KILLING)
    (tmp_path / "maxtext" / "show.py").write_text(
        "import sys\nfrom maxtext.input_pipeline.multihost_dataloading import close\nclose()\n"
        "print(__name__, sys.argv[1:])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["steps=2", "--hf_model_path=/m", "train_data_columns=['messages']"]
    monkeypatch.setattr("sys.argv", ["maxtext_launcher.py", "maxtext.show", *arguments])
    maxtext_launcher.main()
    assert capsys.readouterr().out == f"__main__ {arguments}\n"


def test_the_model_name_is_found_among_maxtexts_arguments() -> None:
    assert find_model_name(["steps=2", "model_name=gemma3-4b"]) == "gemma3-4b"
    with pytest.raises(SystemExit, match="model_name="):
        find_model_name(["steps=2"])


def test_tensor_names_are_renamed_alone_in_lists_and_as_keys() -> None:
    mapping = {
        "params-norm": "model.language_model.norm.weight",
        "params-q": ["model.language_model.layers.0.q", "model.language_model.layers.1.q"],
        "params-vision": "model.vision_tower.patch",
        "model.language_model.norm.weight": [640],
        ("params-a", "params-b"): "model.language_model.gate_up",
    }
    assert rename_tensors(mapping, "model.language_model.", "model.") == {
        "params-norm": "model.norm.weight",
        "params-q": ["model.layers.0.q", "model.layers.1.q"],
        "params-vision": "model.vision_tower.patch",
        "model.norm.weight": [640],
        ("params-a", "params-b"): "model.gate_up",
    }


def test_a_wrapped_mapping_function_gets_its_arguments() -> None:
    def mapping(config: str, *, scan: bool) -> dict[str, str]:
        return {config: f"old.{scan}"}

    assert rename_results(mapping, "old.", "new.")("a", scan=True) == {"a": "new.True"}
