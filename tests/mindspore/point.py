"""Saved variables, as the tests of them look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
from mindspore import Tensor

from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore.program import DUMP, dump_of, files_in, tensor


def make(task: str = "tensor", level: str = "debug") -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=DUMP, task=task, level=level)


def points(step: int = 0) -> dict[str, Any]:
    data: dict[str, Any] = dump_of(step).read("debug.json")["data"]
    return data


def tensors(step: int = 0) -> list[str]:
    return files_in(DUMP / f"step{step}" / "rank" / "dump_tensor_data")


def value(key: str) -> Any:
    return dump_of().tensors(points()[key])


def differentiate(compute: Callable[..., Tensor], *inputs: Tensor) -> Any:
    """Run it forward and backward, from ones where nothing is given."""
    given = inputs or (tensor([1.0]),)
    return mindspore.grad(compute, tuple(range(len(given))))(*given)
