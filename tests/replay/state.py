"""What the parameters and their gradients are at the end of a replay in float64."""

from __future__ import annotations

from pathlib import Path

import torch

from tensorprobe.replay.engine import Replay
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import read_program
from tensorprobe.store.reader import open_dump


class FinalState:
    """By their names in the model; gradients as `weight.grad`."""

    def __init__(self, folder: Path) -> None:
        program = read_program(next(open_dump(folder).ranks()))
        replay = Replay(program, Precision("float64"), torch.device("cpu"))
        replay.run()
        self.tensors: dict[str, torch.Tensor] = {}
        for name, parameter in replay.workspace.parameters.items():
            self.tensors[name] = parameter.detach()
            if parameter.grad is not None:
                self.tensors[f"{name}.grad"] = parameter.grad

    def is_close(self, name: str, expected: torch.Tensor, tolerance: float) -> bool:
        """Up to so much of the largest element of all that is of its kind."""
        found = self.tensors.get(name)
        assert found is not None, name
        kind = [tensor for other, tensor in self.tensors.items() if other.endswith(".grad") == name.endswith(".grad")]
        scale = max(float(tensor.abs().max()) for tensor in kind)
        return float((found - expected).abs().max()) <= tolerance * max(scale, 1e-300)
