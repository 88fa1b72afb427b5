"""Make a publishable Hugging Face directory of MaxText's export, and prove it to be the source, trained.

MaxText writes its own table's config.json (Gemma 3: another activation name, rope_theta and context length).
The source's configuration, tokenizer, chat template and notices are put back, and every exported tensor must
have the source's name, shape and dtype and hold numbers only; some must differ from the source by more than
the conversion rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INDEX = "model.safetensors.index.json"
# What a source brings along besides its weights; not its README, which describes the source.
KEPT_FILES = (
    "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
    "vocab.*", "merges.txt", "*.model", "chat_template*", "*processor_config.json", "NOTICE*", "LICENSE*",
    "*TERMS*",
)  # fmt: skip
# The header's names (huggingface/safetensors, README, "Format"). BF16 is read as its bits.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
BF16_EXPONENT = 0x7F80
# MaxText scales Gemma's embeddings and adds one to its norms, there and back, each time rounding to bfloat16's 8
# significant bits: an untrained model comes back with relative differences of up to 2**-8.
ROUNDING = 2.0**-7
CHUNK_VALUES = 1 << 24
LISTED = 10


class ExportMismatchError(Exception):
    """The exported weights are not the source's, trained."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies, and what its safetensors header says of it."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start_byte: int

    def read(self) -> NDArray[Any]:
        """Return the tensor's values, mapped and not loaded; BF16 as unsigned 16-bit patterns."""
        if self.dtype not in DTYPES:
            raise ExportMismatchError(f"cannot check a tensor of dtype {self.dtype} in {self.path.name}")
        count = math.prod(self.shape)
        if count == 0:
            return np.zeros(0, dtype=DTYPES[self.dtype])
        return np.memmap(
            self.path, dtype=DTYPES[self.dtype], mode="r", offset=self.start_byte, shape=(count,)
        )


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors that a safetensors file declares; raise ExportMismatchError if it is cut short."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header_bytes = file.read(length)
    if len(header_bytes) < length:
        raise ExportMismatchError(f"{path} ends within its header")
    header: dict[str, Any] = json.loads(header_bytes)
    header.pop("__metadata__", None)
    data_bytes = path.stat().st_size - 8 - length
    needed_bytes = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if data_bytes < needed_bytes:
        raise ExportMismatchError(
            f"{path} holds {data_bytes} bytes of tensors where its header says {needed_bytes}"
        )
    return {
        name: TensorEntry(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def read_tensors(directory: Path) -> dict[str, TensorEntry]:
    """Return every tensor of a Hugging Face directory's safetensors files by name."""
    tensors: dict[str, TensorEntry] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(read_header(path))
    if not tensors:
        raise ExportMismatchError(f"{directory} holds no safetensors weights")
    return tensors


def compare_headers(source: dict[str, TensorEntry], exported: dict[str, TensorEntry]) -> list[str]:
    """Return one line for each tensor that is missing, unexpected, or of another shape or dtype."""
    problems = [f"missing: {name}" for name in sorted(source.keys() - exported.keys())]
    problems += [f"unexpected: {name}" for name in sorted(exported.keys() - source.keys())]
    for name in sorted(source.keys() & exported.keys()):
        wanted, got = source[name], exported[name]
        if wanted.shape != got.shape:
            problems.append(f"shape: {name} is {list(got.shape)}, the source's is {list(wanted.shape)}")
        if wanted.dtype != got.dtype:
            problems.append(f"dtype: {name} is {got.dtype}, the source's is {wanted.dtype}")
    return problems


def count_not_finite(dtype: str, values: NDArray[Any]) -> int:
    """Return how many values are NaN or infinite."""
    if dtype == "BF16":
        return int(np.count_nonzero((values & BF16_EXPONENT) == BF16_EXPONENT))
    if np.issubdtype(values.dtype, np.floating):
        return int(np.count_nonzero(~np.isfinite(values)))
    return 0


def widen(dtype: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in float32, or float64 for dtypes with more bits than that."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32)


def count_changed(entry: TensorEntry, values: NDArray[Any], before: NDArray[Any]) -> int:
    """Return how many values differ from those before the training by more than rounding explains."""
    changed = 0
    for start in range(0, values.size, CHUNK_VALUES):
        chunk = slice(start, start + CHUNK_VALUES)
        old, new = widen(entry.dtype, before[chunk]), widen(entry.dtype, values[chunk])
        magnitude = np.abs(old) if len(entry.shape) > 1 else 1 + np.abs(old)
        changed += int(np.count_nonzero(np.abs(new - old) > ROUNDING * magnitude))
    return changed


def refuse(problems: list[str], what: str) -> None:
    """Raise ExportMismatchError with the first problems, if there are any."""
    if problems:
        more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
        raise ExportMismatchError("\n  ".join([what, *problems[:LISTED], *more]))


def check_tensors(source: dict[str, TensorEntry], exported: dict[str, TensorEntry]) -> dict[str, Any]:
    """Return the report on the exported tensors; raise ExportMismatchError on any that is not right."""
    refuse(compare_headers(source, exported), "the exported tensors are not the source's:")
    problems, changed, changed_values = [], 0, 0
    for name, entry in exported.items():
        values = entry.read()
        not_finite = count_not_finite(entry.dtype, values)
        if not_finite:
            problems.append(f"{name}: {not_finite} of {values.size} values are NaN or infinite")
        else:
            changed_here = count_changed(entry, values, source[name].read())
            changed += changed_here > 0
            changed_values += changed_here
    refuse(problems, "the exported weights are not all numbers:")
    if changed == 0:
        raise ExportMismatchError(
            "every exported weight equals the source's but for rounding: the training changed nothing"
        )
    parameters = {name: math.prod(entry.shape) for name, entry in exported.items()}
    return {
        "tensors": len(exported),
        "parameters": sum(parameters.values()),
        "bytes": sum(
            count * np.dtype(DTYPES[exported[name].dtype]).itemsize for name, count in parameters.items()
        ),
        "dtypes": dict(Counter(entry.dtype for entry in exported.values())),
        "changed_tensors": changed,
        "changed_parameters": changed_values,
    }


def copy_files(exported: Path, source: Path, out: Path) -> list[str]:
    """Copy the weights from the export and the rest from the source; return the names of the rest."""
    weights = [*exported.glob("*.safetensors"), *exported.glob(INDEX)]
    for path in weights:
        shutil.copyfile(path, out / path.name)
    kept = sorted({path for pattern in KEPT_FILES for path in source.glob(pattern) if path.is_file()})
    for path in kept:
        shutil.copyfile(path, out / path.name)
    names = [path.name for path in kept]
    if "config.json" not in names:
        raise ExportMismatchError(f"{source} has no config.json to put back")
    return names


def finish_export(exported: Path, source: Path, out: Path) -> dict[str, Any]:
    """Check the export, put the finished directory at `out`, replacing an earlier one; return the report."""
    report = check_tensors(read_tensors(source), read_tensors(exported))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        report["kept_files"] = copy_files(exported, source, model)
        (model / "export_report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            out.rename(Path(scratch) / "replaced")
        model.rename(out)
    return report


def main() -> None:
    """Finish an export, or exit with a message that says what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exported", type=Path, required=True, help="what MaxText's to_huggingface wrote")
    parser.add_argument(
        "--source", type=Path, required=True, help="the Hugging Face directory that was trained on"
    )
    parser.add_argument("--out", type=Path, required=True, help="the finished Hugging Face directory")
    arguments = parser.parse_args()
    try:
        report = finish_export(arguments.exported, arguments.source, arguments.out)
    except ExportMismatchError as error:
        sys.exit(f"Nothing was written to {arguments.out}: {error}")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
