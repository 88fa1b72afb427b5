"""The tables of MaxText's options, and the script that makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.recipe.options import RESERVED_OPTIONS
from finetune.trainers.maxtext_options import load_options
from finetune.trainers.maxtext_options.extract import extract

VERSIONS = ("0.2.2", "0.2.5")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_knows_the_versions_options_and_models(version: str) -> None:
    table = load_options(version)
    assert table.version == version
    assert table.options["learning_rate"]["type"] == "number"
    assert table.options["steps"] == {"type": "integer", "default": 150_001}
    assert "float32" in table.options["dtype"]["enum"]
    assert {"gemma3-4b", "qwen3-0.6b", "llama3.1-8b"} <= set(table.models)
    assert "base_emb_dim" in table.architecture_options
    assert "base_emb_dim" in table.models["gemma3-4b"]
    assert not {"dtype", "weight_dtype", "scan_layers"} & table.architecture_options


def test_lora_came_after_0_2_2() -> None:
    assert "lora.lora_rank" in load_options("0.2.5").options
    assert "lora.lora_rank" not in load_options("0.2.2").options


@pytest.mark.parametrize("version", VERSIONS)
def test_every_reserved_option_exists(version: str) -> None:
    assert set(RESERVED_OPTIONS) - set(load_options(version).options) == set()


TYPES = """
from enum import Enum
from typing import Literal, NewType, Optional
from pydantic import BaseModel, Field, PositiveInt

AxisNames = NewType("AxisNames", str)
ModelName = Literal["default", "known-1b", "half-1b", "known-1b-Instruct"]

class DType(str, Enum):
  BFLOAT16 = "bfloat16"
  FLOAT32 = "float32"

class LoRA(BaseModel):
  lora_rank: int = Field(0, ge=0, description="")

class Base(BaseModel):
  model_name: ModelName = Field("default", description="")
  dtype: DType = Field(DType.BFLOAT16, description="")
  width: PositiveInt = 8

class More(Base):
  rate: float = Field(0.1, gt=0.0, le=1.0)
  limit: None | int = Field(None)
  label: Optional[str] = None
  both: int | float = 1
  axes: list[str] = Field(["data"])
  required: bool = Field(..., description="")

class MaxTextConfig(More):
  lora: LoRA = Field(default_factory=LoRA)
  model_config = {}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package with MaxText's layout and three models, of which one cannot be converted back."""
    files = {
        "common/common_types.py": "import jax\n",
        "configs/types.py": TYPES,
        "configs/models/known-1b.yml": "width: 16\ndtype: float32\nunknown: 1\n",
        "configs/models/half-1b.yml": "width: 16\n",
        "checkpoint_conversion/utils/param_mapping.py": (
            "PARAM_MAPPING = {'known-1b': f, 'half-1b': f, 'known-1b-Instruct': f, 'elsewhere': f}\n"
            "HOOK_FNS = {'known-1b': f, 'known-1b-Instruct': f}\n"
        ),
        "checkpoint_conversion/utils/hf_model_configs.py": (
            "HF_MODEL_CONFIGS = {'known-1b': c, 'half-1b': c, 'known-1b-Instruct': c}\n"
        ),
        "utils/globals.py": "HF_IDS = {'known-1b': 'a', 'half-1b': 'b', 'known-1b-Instruct': 'c'}\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_options_are_read_from_the_source(package: Path) -> None:
    assert extract(package, "9")["options"] == {
        "axes": {"type": "array"},
        "both": {"default": 1},
        "dtype": {"enum": ["bfloat16", "float32"], "default": "bfloat16"},
        "label": {"type": "string", "nullable": True, "default": None},
        "limit": {"type": "integer", "nullable": True, "default": None},
        "lora.lora_rank": {"type": "integer", "minimum": 0, "default": 0},
        "model_name": {
            "enum": ["default", "known-1b", "half-1b", "known-1b-Instruct"],
            "default": "default",
        },
        "rate": {"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0, "default": 0.1},
        "required": {"type": "boolean"},
        "width": {"type": "integer", "exclusiveMinimum": 0, "default": 8},
    }


def test_only_models_that_convert_both_ways_count(package: Path) -> None:
    table = extract(package, "9")
    assert table["models"] == {"known-1b": ["dtype", "width"], "known-1b-Instruct": ["dtype", "width"]}
    assert table["architecture_options"] == ["width"]


def test_a_table_that_moved_is_noticed(package: Path) -> None:
    (package / "utils/globals.py").write_text("IDS = {}\n")
    with pytest.raises(LookupError, match="assigns no dictionary to HF_IDS"):
        extract(package, "9")
