"""What `convert_weight` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.errors import UsageError
from tensorprobe.migrator.weight import weight_module
from tensorprobe.model.weight_row import MAPPED, RESHAPED, TRANSPOSED, WeightRow
from tensorprobe.report.weight import WeightReport

Array = np.ndarray[Any, Any]
_SUFFIXES = {"mindspore": (".ckpt",), "pytorch": (".pt", ".pth")}
_BY_FLOAT32 = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, repr=False)
class ConvertedWeights:
    """Weights under the names of the other framework; true if every one of both sides found its place."""

    framework: str
    """Whose names they have: `mindspore`, `pytorch`."""
    rows: tuple[WeightRow, ...]
    _readers: dict[str, Callable[[], Array]]

    def __repr__(self) -> str:
        return f"<weights for {self.framework}: {self.report.summary}>"

    def __bool__(self) -> bool:
        return self.report.is_complete

    @cached_property
    def report(self) -> WeightReport:
        return WeightReport(self.rows)

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """By name, in numpy; bfloat16 and float8 as float32, which holds them exactly."""
        found: dict[str, Array] = {}
        for row in self.rows:
            if row.status != MAPPED or row.target is None:
                continue
            array = self._array(row)
            if row.piece is None or row.piece.is_of_source:
                found[row.target.name] = array
            else:
                whole = found.setdefault(row.target.name, np.empty(row.target.shape, array.dtype))
                whole[row.piece.place] = array
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """For mindspore.load_param_into_net: a Parameter for each name."""
        return self._values("mindspore")

    @property
    def state_dict(self) -> dict[str, Any]:
        """For Module.load_state_dict: a tensor for each name."""
        return self._values("pytorch")

    def load_into(self, target: Any) -> None:
        """Put them into a Cell or Module; weights of it that nothing was found for stay as they are."""
        module = weight_module(self.framework)
        if not module.is_model(target):
            kind = "mindspore.nn.Cell" if self.framework == "mindspore" else "torch.nn.Module"
            raise UsageError(f"the weights can be loaded into a {kind}; the target is a {type(target).__name__}")
        module.load_values(target, self._values(self.framework))

    def save(self, path: str | Path) -> Path:
        """A file that the framework reads: .ckpt for MindSpore, .pt or .pth for PyTorch."""
        path = Path(path)
        if path.suffix not in _SUFFIXES[self.framework]:
            wanted = " or ".join(_SUFFIXES[self.framework])
            raise UsageError(f"{path} must end in {wanted}: these are weights for {self.framework}")
        if not path.parent.is_dir():
            raise UsageError(f"the folder {path.parent} does not exist")
        try:
            weight_module(self.framework).save_values(path, self._values(self.framework))
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror or error})") from error
        return path

    def _values(self, framework: str) -> dict[str, Any]:
        if framework != self.framework:
            raise UsageError(f"these weights have the names of {self.framework}; .arrays has them without a framework")
        make = weight_module(framework).make_value
        dtypes = {row.target.name: row.source.dtype for row in self.rows if row.target and row.source}
        return {name: make(array, dtypes[name], name) for name, array in self.arrays.items()}

    def _array(self, row: WeightRow) -> Array:
        assert row.source is not None and row.target is not None
        array = self._readers[row.source.name]()
        if row.source.dtype in _BY_FLOAT32:
            array = array.astype(np.float32)
        if row.piece is not None and row.piece.is_of_source:
            array = array[row.piece.place]
        if row.layout == RESHAPED:
            return array.reshape(row.target.shape)
        return array.T if row.layout == TRANSPOSED else array
