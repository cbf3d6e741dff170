"""The program behind the golden files: `python golden_program.py TASK DUMP_PATH`. Numbers are set by hand and exact.

Its lines stand in stack.json: whoever moves them writes the golden files anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from tensorprobe.mindspore import PrecisionDebugger


class Tiny(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        weight, bias = Tensor([[3.0, 0.0], [0.0, 4.0]]), Tensor([0.0, -4.0])
        self.fc = nn.Dense(2, 2, weight_init=weight, bias_init=bias)
        self.register_buffer("scale", Tensor([1.0, 0.0]))

    def construct(self, x: Tensor, *, pair: tuple[Tensor, int]) -> Tensor:
        y = ops.relu(self.fc(x))
        return ops.addn([y * self.scale, pair[0] * pair[1]])


def main(task: str, dump_path: str) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path, task=task, level="mix")
    model = Tiny()

    def compute(x: Tensor) -> Tensor:
        out = model(x, pair=(Tensor(np.array([[0.0, np.nan]], np.float32)), 2))
        debugger.save({"out": [out, 1.5], "text": "a"}, "point")
        keep_parts(debugger, Path(dump_path))
        return out[0, :1].sum()

    debugger.start(model)
    mindspore.grad(compute, 0, model.trainable_params())(Tensor([[1.0, 0.0]]))
    debugger.stop()
    debugger.step()


def keep_parts(debugger: PrecisionDebugger, dump_path: Path) -> None:
    """What a SIGKILL would leave here, just after a flush."""
    debugger._session._sink.flush()
    for part in (dump_path / "step0" / "rank").glob("*.part"):
        shutil.copy(part, dump_path / part.name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
