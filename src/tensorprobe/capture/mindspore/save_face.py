"""`tensorprobe.save` and `tensorprobe.save_grad` for a program that has imported MindSpore: they have two readers,
Python, and the graph compiler, which follows `is_compiled()`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mindspore import Tensor, constexpr, get_context, jit_class, ops

from tensorprobe.capture import save_now
from tensorprobe.capture.mindspore.graph_op import (
    Array,
    is_compiled,
    make_ordered_gradient_tap,
    make_taps,
    writes_from_python,
)
from tensorprobe.capture.mindspore.numbered import kind
from tensorprobe.capture.mindspore.rank import current_rank
from tensorprobe.capture.save_target import PRINT_MARK, no_tensor, read_target, wrong_data
from tensorprobe.store.layout import rank_name
from tensorprobe.store.narrow_float import widen_bits

Path = str | os.PathLike[str]


def save(file: Path, data: Any, suffix: str | None, output_mode: str) -> None:
    """Save a tensor, or every tensor in a nesting of dict, list and tuple, as it is now."""
    if is_compiled():
        folder, name, ending, is_print = _read_constants("save", file, suffix, output_mode)
        if not isinstance(data, (dict, list, tuple, Tensor, type(None))):
            _refuse_data("save", _word_for(data))
        if _count_tensors(data) == 0:
            _say_no_tensor(name)
        _save_compiled(folder, name, ending, is_print, data)
    else:
        save_now.save_now(file, data, suffix, output_mode)


def save_grad(file: Path, data: Any, suffix: str | None, output_mode: str) -> Any:
    """Save the gradient of `data` when it comes. Returns `data`, to be passed on."""
    if is_compiled():
        folder, name, ending, is_print = _read_constants("save_grad", file, suffix, output_mode)
        if not isinstance(data, Tensor):
            _refuse_data("save_grad", _word_for(data))
        if is_print:
            return _GradientPrinter(name + ending)(data)
        if _is_called_by_graph():
            return _OrderedGradientTap(folder, name + ending)(data)
        return _GradientTap(folder, name + ending)(data)
    return save_now.save_grad_now(file, data, suffix, output_mode)


def _receive(folder: str, name: str, array: Array, dtype: str) -> None:
    own = widen_bits(array, dtype) if dtype == "bfloat16" else np.array(array, order="C")
    save_now.files.save_array(kind, folder, name, own)


def dump_path(folder: str, name: str) -> str:
    """What MindSpore's TensorDump is given; it appends the dtype and a number of its own."""
    rank = current_rank()
    return os.path.join(folder, name) if rank is None else os.path.join(folder, rank_name(rank), name)  # noqa: PTH118


_ValueTap, _GradientTap = make_taps(_receive, dump_path)
_OrderedGradientTap = make_ordered_gradient_tap(_receive)


@jit_class
class _Printer:
    """MindSpore's own Print, which also writes to `print_file_path` where there is one."""

    def __init__(self, name: str) -> None:
        self.mark = PRINT_MARK + name
        self.show = ops.Print()

    def __call__(self, tensor: Any) -> Any:  # compiled
        return self.show(self.mark, tensor)


@jit_class
class _GradientPrinter:
    def __init__(self, name: str) -> None:
        show = _Printer(name)

        def show_and_pass_on(gradient: Any) -> Any:  # compiled
            show(gradient)
            return gradient

        self.identity = ops.InsertGradientOf(show_and_pass_on)

    def __call__(self, tensor: Any) -> Any:  # compiled
        return self.identity(tensor)


def _save_compiled(folder: str, name: str, ending: str, is_print: bool, data: Any) -> None:  # compiled
    if isinstance(data, dict):
        for key in data:
            _save_compiled(folder, f"{name}.{key}", ending, is_print, data[key])
    elif isinstance(data, (list, tuple)):
        for index in range(len(data)):
            _save_compiled(folder, f"{name}.{index}", ending, is_print, data[index])
    elif isinstance(data, Tensor):
        if is_print:
            _Printer(name + ending)(data)
        else:
            _ValueTap(folder, name + ending)(data)


def _count_tensors(data: Any) -> int:  # compiled
    count = 0
    if isinstance(data, dict):
        for key in data:
            count = count + _count_tensors(data[key])
    elif isinstance(data, (list, tuple)):
        for item in data:
            count = count + _count_tensors(item)
    elif isinstance(data, Tensor):
        count = 1
    return count


def _word_for(data: Any) -> str:  # compiled, which cannot name a type by itself
    if isinstance(data, dict):
        return "dict"
    if isinstance(data, list):
        return "list"
    if isinstance(data, tuple):
        return "tuple"
    if isinstance(data, str):
        return "str"
    return "a number or None"


@constexpr  # type: ignore[untyped-decorator]
def _is_called_by_graph() -> bool:
    """Whether graphs can call Python here: on CPU. Elsewhere MindSpore's own TensorDump writes."""
    return writes_from_python(get_context("device_target"))


@constexpr(check=False)  # type: ignore[untyped-decorator]
def _read_constants(function: str, file: Any, suffix: Any, output_mode: Any) -> tuple[str, str, str, bool]:
    """Run by the compiler, which knows no value of what is computed."""
    target = read_target(function, file, suffix, output_mode)
    save_now.files.expect(kind)
    return target.folder, target.name, target.title(""), target.is_print


@constexpr  # type: ignore[untyped-decorator]
def _refuse_data(function: str, data_type: str) -> None:
    raise wrong_data(function, data_type)


@constexpr  # type: ignore[untyped-decorator]
def _say_no_tensor(name: str) -> None:
    save_now.files.say_once(no_tensor(name))
