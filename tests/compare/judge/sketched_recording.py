"""A recording with what the search by content needs besides: sketches, the names of parameters, backward passes.

run = SketchedRecording()
weight = run.parameter("fc.weight", array)
loss = run.api("Tensor.mean", …)
run.ask(loss)  # what comes next is the backward
step = run.read(path)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import open_dump
from tensorprobe.store.sketch import sketch_array
from tests.compare.recording import Recording, Traced

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Parameter(Traced):
    name: str = ""


class SketchedRecording(Recording):
    def __init__(self, has_sketches: bool = True) -> None:
        super().__init__("statistics")
        self.has_sketches = has_sketches
        self.run["backward_passes"] = []

    def parameter(self, name: str, array: Array) -> Parameter:
        return Parameter(array, None, True, name)

    def ask(self, loss: Traced, accumulates: bool = True) -> None:
        """The engine is asked for the gradients of this."""
        root: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], "source": loss.source}
        listed = {"roots": [root], "records": len(self.records), "accumulates": accumulates}
        self.run["backward_passes"].append(listed)

    def read(self, folder: Path) -> Run:
        return read_run(next(iter(open_dump(self.write(folder)).ranks())))

    def _leaf(self, name: str, slot: str, value: Any) -> Any:
        leaf = super()._leaf(name, slot, value)
        if isinstance(value, Traced) and self.has_sketches:
            leaf["Sketch"] = sketch_array(value.array)
        if isinstance(value, Parameter):
            leaf["parameter"] = value.name
        return leaf
