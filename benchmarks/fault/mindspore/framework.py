"""MindSpore in PyNative mode, as the corpus sees it. Operations run one after the other, as they are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # without warnings

import mindspore
import numpy as np
from mindspore import nn
from mindspore._c_expression import RuntimeConf

from fault.mindspore.change import CHANGES
from fault.mindspore.model.catalog import HELD_OUT, MODELS
from fault.mindspore.noise import NOISES
from fault.place import Code
from fault.program import Program
from tensorprobe.mindspore import PrecisionDebugger

# Neither has an effect after the first operation. With several threads an operation, MindSpore gives one program other
# bits from run to run, and the truth of this corpus is bits.
mindspore.runtime.launch_blocking()
if not RuntimeConf.get_instance().is_op_threads_num_configured():  # a second time is an error
    mindspore.device_context.cpu.op_tuning.threads_num(1)


class MindSpore:
    models = MODELS
    deep: tuple[str, ...] = ()
    held_out = HELD_OUT
    noises = NOISES
    changes = CHANGES

    def __init__(self) -> None:
        self._is_training = False

    def seed(self, seed: int) -> None:
        mindspore.set_seed(seed)  # numpy's too

    def unsettle(self, program: Program) -> None:
        draw = np.random.default_rng(len(program.batches))
        for _, parameter in program.model.parameters_and_names():
            if parameter.ndim == 1:
                array = parameter.asnumpy()
                shaken = array * (1 + 0.2 * draw.random(array.shape)) + 0.1 * draw.random(array.shape)
                parameter.set_data(mindspore.Tensor(shaken.astype(array.dtype)))

    def change_dtype(self, program: Program, dtype: str) -> None:
        raise NotImplementedError(f"a CPU has no kernels of MindSpore for {dtype}")

    def modules(self, model: nn.Cell) -> Iterable[tuple[str, nn.Cell]]:
        return model.cells_and_names()

    def watch_calls(self, module: nn.Cell, notice: Callable[[], None]) -> None:
        module.register_forward_pre_hook(lambda *_: notice())

    def is_grad_enabled(self) -> bool:
        return self._is_training

    def protect(self, code: Code[Any]) -> Code[Any]:
        return code

    def run_step(self, program: Program, step: int) -> None:
        self._run_step(program, step)

    def record(self, program: Program, level: str, task: str, steps: int, folder: Path) -> None:
        optimizer = nn.SGD(program.model.trainable_params(), program.learning_rate)
        debugger = PrecisionDebugger(dump_path=str(folder), task=task, level=level)
        try:
            for step in range(steps):
                debugger.start(model=program.model)
                gradients = self._run_step(program, step)
                debugger.stop()
                optimizer(gradients)
                debugger.step()
        finally:
            PrecisionDebugger.reset()

    def kernels(self, dtype: str) -> AbstractContextManager[None]:
        return nullcontext()

    def load(self, file: Path) -> np.ndarray:
        array = np.load(file, allow_pickle=False)
        if array.dtype.kind != "V":
            return array
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # bfloat16

    def _run_step(self, program: Program, step: int) -> tuple[mindspore.Tensor, ...]:
        mindspore.set_seed(program.step_seed + step)
        batch = program.batches[step]
        weights = program.model.trainable_params()
        program.model.set_train()
        train = mindspore.value_and_grad(lambda: program.compute_loss(program.model, batch), None, weights)
        self._is_training = True
        try:
            _, gradients = train()
        finally:
            self._is_training = False
        if program.evaluate:
            program.evaluate(program.model, batch)
        return gradients  # type: ignore[no-any-return]


FRAMEWORK = MindSpore()
