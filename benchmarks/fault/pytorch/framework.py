"""PyTorch, as the corpus sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fault.place import Code
from fault.program import Program
from fault.pytorch.change import CHANGES
from fault.pytorch.model.catalog import DEEP, HELD_OUT, MODELS
from fault.pytorch.noise import NOISES
from fault.pytorch.onednn import onednn
from tensorprobe.pytorch import PrecisionDebugger


class PyTorch:
    models = MODELS
    deep = DEEP
    held_out = HELD_OUT
    noises = NOISES
    changes = CHANGES

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def unsettle(self, program: Program) -> None:
        with torch.no_grad():
            for tensor in [*program.model.parameters(), *program.model.buffers()]:
                if tensor.is_floating_point() and tensor.ndim == 1:
                    tensor.mul_(1 + 0.2 * torch.rand_like(tensor)).add_(0.1 * torch.rand_like(tensor))

    def change_dtype(self, program: Program, dtype: str) -> None:
        wanted = getattr(torch, dtype)
        program.model.to(wanted)
        for batch in program.batches:
            batch.update({name: value.to(wanted) for name, value in batch.items() if value.is_floating_point()})

    def modules(self, model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
        return model.named_modules()

    def watch_calls(self, module: nn.Module, notice: Callable[[], None]) -> None:
        module.register_forward_pre_hook(lambda *_: notice())

    def is_grad_enabled(self) -> bool:
        return torch.is_grad_enabled()

    def protect(self, code: Code[Any]) -> Code[Any]:
        def run() -> Any:
            with onednn(enabled=False):
                return code()

        return run

    def run_step(self, program: Program, step: int) -> None:
        torch.manual_seed(program.step_seed + step)
        batch = program.batches[step]
        program.compute_loss(program.model, batch).backward()
        if program.evaluate:
            with torch.no_grad():
                program.evaluate(program.model, batch)

    def record(self, program: Program, level: str, task: str, steps: int, folder: Path) -> None:
        optimizer = torch.optim.SGD(program.model.parameters(), lr=program.learning_rate)
        debugger = PrecisionDebugger(dump_path=str(folder), task=task, level=level)
        try:
            for step in range(steps):
                debugger.start(model=program.model)
                self.run_step(program, step)
                debugger.stop()
                optimizer.step()
                optimizer.zero_grad()
                debugger.step()
        finally:
            PrecisionDebugger.reset()

    def kernels(self, dtype: str) -> AbstractContextManager[None]:
        return onednn(dtype == "float32")

    def load(self, file: Path) -> np.ndarray:
        tensor: torch.Tensor = torch.load(file, weights_only=True)
        return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


FRAMEWORK = PyTorch()
