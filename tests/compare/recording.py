"""Runs as a test writes them down: a few calls on numpy arrays, put on disk as capture would, without a framework.

run = Recording()
x = run.data(array)
y = run.api("Functional.relu", x, output=np.maximum(x.array, 0))
run.write(path)
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_VERSIONED = {"pytorch": "torch", "mindspore": "mindspore"}
_VERSION = {"pytorch": "2.13.0", "mindspore": "2.10.0"}
_MINDSPORE_DTYPES = {"bfloat16": "BFloat16", "uint8": "UInt8", "uint16": "UInt16"}


@dataclass(eq=False)
class Traced:
    """A tensor of a recorded run."""

    array: np.ndarray
    source: str | None = None
    requires_grad: bool = False


class ModuleCall:
    """A module call while it is open; `output` is set before it ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.output: Any = None


class Recording:
    def __init__(
        self, task: str = "tensor", level: str = "L1", checksum: bool = False, framework: str = "pytorch"
    ) -> None:
        self.task, self.level, self.checksum, self.framework = task, level, checksum, framework
        self.records: dict[str, dict[str, Any]] = {}
        self.parents: dict[str, str | None] = {}
        self.lines: dict[str, int] = {}
        self.files: dict[str, np.ndarray] = {}
        self.run: dict[str, Any] = {"versions": {_VERSIONED[framework]: _VERSION[framework]}, "complete": True}
        self._counters: Counter[str] = Counter()
        self._open: list[tuple[str, str]] = []
        self._line = 0

    def data(self, array: Any, requires_grad: bool = False) -> Traced:
        """A tensor that no recorded call made."""
        return Traced(np.asarray(array), None, requires_grad)

    def api(self, stem: str, *args: Any, output: Any, module_path: str | None = None, **options: Any) -> Any:
        """One forward call; `kwargs={…}` are its keyword arguments, `fields={…}` further fields of its record."""
        index = self._counters[stem]
        self._counters[stem] += 1
        name = f"{stem}.{index}.forward"
        path = module_path if module_path is not None else (self._open[-1][1] if self._open else None)
        return self._close(name, args, output, path, **options)

    def backward(self, forward: str, gradients: Any, outputs: Any, **fields: Any) -> Any:
        """The backward call of `Functional.linear.0` or of `Module.fc.Linear`: gradients in, gradients out."""
        is_module = forward.startswith(("Module.", "Cell."))
        name = f"{forward}.backward.0" if is_module else f"{forward}.backward"
        record: dict[str, Any] = {
            "input": [self._leaf(name, f"input.{i}", g) for i, g in enumerate(_as_list(gradients))]
        }
        results = [self._produce(name, result) for result in _as_list(outputs)]
        record["output"] = [self._leaf(name, f"output.{i}", result) for i, result in enumerate(results)]
        self.records[name] = {**record, **fields}
        self.parents[name] = None
        return results if isinstance(outputs, list) else results[0]

    def parameters_grad(self, stem: str, **gradients: Any) -> None:
        name = f"{stem}.parameters_grad"
        self.records[name] = {
            key: [self._leaf(name, key, value if isinstance(value, Traced) else self.data(value))]
            for key, value in gradients.items()
        }

    @contextmanager
    def module(self, path: str, class_name: str, *args: Any, **state: dict[str, Traced]) -> Iterator[ModuleCall]:
        """A module call, open while the calls inside it are recorded."""
        prefix = "Cell" if self.framework == "mindspore" else "Module"
        stem = f"{prefix}.{path}.{class_name}" if path else f"{prefix}.{class_name}"
        name = f"{stem}.forward.{self._counters[stem]}"
        self._counters[stem] += 1
        self._open.append((name, path))
        call = ModuleCall(name)
        yield call
        self._open.pop()
        fields = {
            role: {key: self._leaf(name, f"{role}.{key}", value) for key, value in values.items()}
            for role, values in state.items()
        }
        call.output = self._close(name, args, call.output, path, fields=fields)

    def _close(
        self,
        name: str,
        args: tuple[Any, ...],
        output: Any,
        module_path: str | None,
        kwargs: dict[str, Any] | None = None,
        fields: dict[str, Any] | None = None,
    ) -> Any:
        record: dict[str, Any] = {
            "input_args": [self._leaf(name, f"input.{i}", value) for i, value in enumerate(args)],
            "input_kwargs": {key: self._leaf(name, f"kwargs.{key}", value) for key, value in (kwargs or {}).items()},
        }
        results = [self._produce(name, result) for result in _as_list(output)]
        record["output"] = [self._leaf(name, f"output.{i}", result) for i, result in enumerate(results)]
        if module_path is not None:
            record["module_path"] = module_path
        self.records[name] = {**record, **(fields or {})}
        self.parents[name] = self._open[-1][0] if self._open else None
        self._line += 1
        self.lines[name] = self._line
        return results if isinstance(output, list) else results[0]

    def _produce(self, name: str, result: Any) -> Any:
        return Traced(np.asarray(result), name) if isinstance(result, np.ndarray | np.generic | float) else result

    def _leaf(self, name: str, slot: str, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Traced):
            return {"type": type(value).__name__, "value": value}
        array = value.array
        leaf: dict[str, Any] = {
            "type": f"{_VERSIONED[self.framework]}.Tensor",
            "dtype": _dtype_name(array.dtype, self.framework),
            "shape": list(array.shape),
            "requires_grad": value.requires_grad,
        }
        if self.task != "structure":
            leaf |= _statistics(array)
        if self.checksum:
            leaf["md5"] = f"{zlib.crc32(np.ascontiguousarray(array)):08x}"
        if self.task == "tensor":
            leaf["data_name"] = f"{name}.{slot}.npy"
            self.files[leaf["data_name"]] = array
        if value.source is not None and value.source != name:
            leaf["source"] = value.source
        return leaf

    def write(self, path: Path, step: int = 0, rank: str = "rank") -> Path:
        """Put it on disk; the dump_path comes back."""
        folder = path / f"step{step}" / rank
        (folder / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
        header = {"task": self.task, "level": self.level, "framework": self.framework, "dump_data_dir": None}
        (folder / "dump.json").write_text(json.dumps({**header, "data": self.records}))
        (folder / "construct.json").write_text(json.dumps({} if self.level == "L1" else self.parents))
        stacks = {
            str(number): [[name], [f"File model.py, line {line}, in forward, \n call_{line}()"]]
            for number, (name, line) in enumerate(self.lines.items())
        }
        (folder / "stack.json").write_text(json.dumps(stacks))
        (folder / "run.json").write_text(json.dumps(self.run))
        for name, array in self.files.items():
            np.save(folder / "dump_tensor_data" / name, array)
        return path


def forget_statistics(run: Recording) -> None:
    """Leave the tensors to their files, as TroubleShooter does, or to their checksums."""
    for record in run.records.values():
        for leaf in [*record["input_args"], *record["output"]]:
            for key in ("Max", "Min", "Mean", "Norm"):
                leaf.pop(key, None)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _dtype_name(dtype: np.dtype[Any], framework: str) -> str:
    if framework == "mindspore":
        return _MINDSPORE_DTYPES.get(dtype.name, dtype.name.capitalize())
    return f"torch.{dtype}"


def _statistics(array: np.ndarray) -> dict[str, Any]:
    if array.size == 0:
        return {"Max": None, "Min": None, "Mean": None, "Norm": None}
    array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    known = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    numbers = known.astype(np.float64)
    leaf = {
        "Max": known.max().item(),
        "Min": known.min().item(),
        "Mean": float(numbers.mean()),
        "Norm": float(np.sqrt(np.square(numbers).sum())),
    }
    if known.size < array.size:
        leaf["nan_count"] = int(array.size - known.size)
    return leaf
