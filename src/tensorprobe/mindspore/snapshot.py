"""`save(save_dir, name, data)`, `save_grad(save_dir, name, data)` and `step()`: tensors as .npy files, for MindSpore
tensors, in PyNative and inside functions and cells that are compiled to a graph.

{save_dir}/step{N}/rank{R}/x_float32_0.npy        z_grad_float32_0.npy

`save` and `save_grad` have two readers: Python, and the graph compiler, which follows `is_compiled()`.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

from mindspore import Tensor, constexpr

from tensorprobe.capture.mindspore.executor import wait_for_results
from tensorprobe.capture.mindspore.graph_op import Array, advance_dump_step, is_compiled, make_taps
from tensorprobe.capture.mindspore.rank import current_rank
from tensorprobe.capture.mindspore.snapshot import array_of, watch_snapshot_gradient
from tensorprobe.capture.snapshot import Snapshots, check_arguments
from tensorprobe.errors import UsageError

_snapshots = Snapshots(Tensor, array_of, current_rank)


def save(save_dir: str | os.PathLike[str], name: str, data: Any) -> None:
    """Save a tensor, or every tensor in a nesting of dict, list and tuple, as it is now."""
    if is_compiled():
        _save_compiled(_check_constants("save", save_dir, name), name, data)
    else:
        _save_now(save_dir, name, data)


def save_grad(save_dir: str | os.PathLike[str], name: str, data: Tensor) -> Tensor:
    """Save the gradient of `data` when it comes. Returns `data`, to be passed on."""
    if is_compiled():
        if not isinstance(data, Tensor):
            _refuse_data()
        return _GradientTap(_check_constants("save_grad", save_dir, name), f"{name}_grad")(data)
    return _watch_now(save_dir, name, data)


def step() -> None:
    """What is saved from now on goes into the next step's folder."""
    wait_for_results()
    _snapshots.step()
    advance_dump_step()


def _save_now(save_dir: str | os.PathLike[str], name: str, data: Any) -> None:
    check_arguments("save", save_dir, name)
    _snapshots.save(save_dir, name, data)


def _watch_now(save_dir: str | os.PathLike[str], name: str, data: Tensor) -> Tensor:
    check_arguments("save_grad", save_dir, name)
    if not isinstance(data, Tensor):
        raise UsageError(f"save_grad(save_dir, name, data): data is a mindspore.Tensor, not {type(data).__name__}")
    watch_snapshot_gradient(_snapshots, save_dir, name, data)
    return data


def _receive(save_dir: str, name: str, array: Array, dtype: str) -> None:
    _snapshots.save_array(Path(save_dir), name, array, dtype)


_ValueTap, _GradientTap = make_taps(_receive)


def _save_compiled(save_dir: str, name: str, data: Any) -> None:  # compiled
    if isinstance(data, dict):
        for key in data:
            _save_compiled(save_dir, f"{name}.{key}", data[key])
    elif isinstance(data, (list, tuple)):
        for index in range(len(data)):
            _save_compiled(save_dir, f"{name}.{index}", data[index])
    elif isinstance(data, Tensor):
        _ValueTap(save_dir, name)(data)


@constexpr(check=False)  # type: ignore[untyped-decorator]
def _check_constants(function: str, save_dir: Any, name: Any) -> str:
    """Run by the compiler, which knows no value of what is computed."""
    check_arguments(function, save_dir, name)
    return str(Path(save_dir))


@constexpr  # type: ignore[untyped-decorator]
def _refuse_data() -> None:
    raise UsageError("save_grad(save_dir, name, data): data is a mindspore.Tensor")


atexit.register(wait_for_results)  # a graph that still runs when the program ends has values to write
