"""What every cell inside a compiled graph is given, returns and gets as gradients.

While it is installed, the `construct` of each cell stands inside another one that hands the values to Python; the
compiler reads both. Graphs that are compiled meanwhile are known by other keys than the program's own, so that neither
is taken for the other.

The numbers that a program computes stay the same bits, with one exception: where a tensor is used several times inside
a cell and outside of it too, the shares of its gradient are added up in another order, those of the cell first.

A call of a cell draws a number when it begins, and the number goes with its values through the graph: gradients find
the call that they belong to, however often and in whatever order a cell is used. Calls begin and end in the order of
the program; gradients come in their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import MethodType
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.ops._grad_experimental.grad_base import bprop_getters
from mindspore.ops.functional import isconstant

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.graph_op import (
    Array,
    bfloat16_bits,
    boxed,
    is_compiled,
    make_operator,
    unboxed,
    writes_from_python,
)
from tensorprobe.capture.patch import replace
from tensorprobe.errors import UsageError

try:
    from mindspore.graph import api
except ImportError:  # before MindSpore 2.9
    from mindspore.common import api

BEGIN, END = "begin", "end"
INPUT, KEYWORD, OUTPUT = "input", "keyword", "output"
INPUT_GRADIENT, KEYWORD_GRADIENT, OUTPUT_GRADIENT = "input_gradient", "keyword_gradient", "output_gradient"
PARAMETER_GRADIENT = "parameter_gradient"
NO_CALL = -1


class Spot(NamedTuple):
    """A place in a graph that hands something to Python."""

    stem: str
    role: str
    path: str
    """Where in the arguments or in the result: `0`, `1.key`."""


Deliver = Callable[[Spot, int, Array, str], None]
"""`deliver(spot, call, array, dtype)`, from a thread of the runtime: the array is good until it returns. An empty array
for the beginning and the end of a call."""

_NUMBERS = itertools.count()


class GraphCapture:
    """Hands what the cells of compiled graphs compute to `deliver`, while it is installed."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._keys: dict[tuple[int, ...], str] = {}
        self._calls = itertools.count()
        self._spots: list[Spot] = []
        self._numbers: dict[Spot, int] = {}
        self.unseen: set[Spot] = set()
        """Values whose shape is known only when the graph runs."""
        self._wrap, self._make_hook = _make_wrapper(self)

    def install(
        self, cells: Sequence[tuple[str, nn.Cell]], parameters: Sequence[tuple[str, str, ms.Parameter]] = ()
    ) -> Undo:
        """Begin with these cells, each with the stem of its name, and with the gradients of these parameters (stem,
        name, parameter), for GRAPH_MODE; what is returned takes everything back."""
        if not writes_from_python(ms.get_context("device_target")):
            raise UsageError("cells inside a compiled graph can be captured on CPU only; use PyNative mode")
        with ExitStack() as undos:
            for stem, cell in cells:
                undos.callback(self._install_on(stem, cell))
            for stem, name, parameter in parameters:
                if parameter.requires_grad:
                    undos.callback(parameter.register_hook(self._make_hook(stem, name)).remove)
            key = self._keys.setdefault(tuple(id(cell) for _, cell in cells), f".tensorprobe{next(_NUMBERS)}")
            undos.callback(replace(api, "_get_parameter_ids", _add_key(api._get_parameter_ids, key)))
            return undos.pop_all().close

    @property
    def last_stem(self) -> str | None:
        """The cell that the compiler has looked at last: where it fails, this is the one that it cannot take."""
        return self._spots[-1].stem if self._spots else None

    def _install_on(self, stem: str, cell: nn.Cell) -> Undo:
        own = cell.__dict__.get("construct")
        wrapped = MethodType(self._wrap(stem, cell.construct), cell)
        object.__setattr__(cell, "construct", wrapped)

        def undo() -> None:
            if cell.__dict__.get("construct") is wrapped:
                if own is None:
                    object.__delattr__(cell, "construct")
                else:
                    object.__setattr__(cell, "construct", own)

        return undo

    def number_of(self, spot: Spot) -> int:
        number = self._numbers.get(spot)
        if number is None:
            number = self._numbers[spot] = len(self._spots)
            self._spots.append(spot)
        return number

    def begin(self, number: int) -> int:
        call = next(self._calls)
        self._deliver(self._spots[number], call, _NOTHING, "")
        return call

    def receive(self, number: int, call: int, array: Array, dtype: str) -> None:
        self._deliver(self._spots[number], call, array, dtype)


_NOTHING = np.zeros(0, np.int32)


def _add_key(original: Callable[..., str], key: str) -> Callable[..., str]:
    """A function that MindSpore asks for a part of the key of a graph."""
    return lambda args, kwargs: original(args, kwargs) + key


def _make_wrapper(capture: GraphCapture) -> tuple[Callable[[str, Any], Any], Callable[[str, str], Any]]:
    """A function that puts a `construct` inside another one, and one that makes a hook for a parameter. All that is
    marked as compiled is read by the compiler."""

    @ms.constexpr  # type: ignore[untyped-decorator]
    def number_of(stem: str, role: str, path: str) -> int:
        return capture.number_of(Spot(stem, role, path))

    hand_over = _make_hand_over(capture)
    save_tree = _make_save(capture, number_of)
    watch_tree = _make_watch(hand_over, number_of)
    return _make_wrap(capture, number_of, save_tree, watch_tree), _make_hook_maker(capture, hand_over)


def _make_hand_over(capture: GraphCapture) -> Any:
    plain = make_operator(_plain_function(capture), 4, is_ordered=False)
    bfloat16 = make_operator(_bfloat16_function(capture), 4, is_ordered=False)

    def hand_over(gradient: Any, call: Any, number: Any) -> Any:  # compiled
        if gradient.dtype == ms.bfloat16:
            done = bfloat16(*boxed(ops.cast(gradient, ms.float32)), call, number)
        else:
            done = plain(*boxed(gradient), call, number)
        return ops.depend(gradient, done)

    return hand_over


def _make_hook_maker(capture: GraphCapture, hand_over: Any) -> Callable[[str, str], Any]:
    def make_hook(stem: str, name: str) -> Any:
        number = ms.Tensor([capture.number_of(Spot(stem, PARAMETER_GRADIENT, name))], ms.int32)
        call = ms.Tensor([NO_CALL], ms.int32)

        def receive_parameter_gradient(gradient: Any) -> Any:  # compiled
            return hand_over(gradient, call, number)

        return receive_parameter_gradient

    return make_hook


def _make_save(capture: GraphCapture, number_of: Any) -> Any:
    plain = make_operator(_plain_function(capture), 4)
    bfloat16 = make_operator(_bfloat16_function(capture), 4)

    @ms.constexpr  # type: ignore[untyped-decorator]
    def note_unseen(stem: str, role: str, path: str) -> None:
        capture.unseen.add(Spot(stem, role, path))

    def save_tensor(stem: str, role: str, path: str, call: Any, tensor: Any) -> None:  # compiled
        if not isconstant(tensor.shape):
            note_unseen(stem, role, path)
        else:
            number = ms.Tensor([number_of(stem, role, path)], ms.int32)
            value = ops.stop_gradient(tensor)
            if tensor.dtype == ms.bfloat16:
                bfloat16(*boxed(ops.cast(value, ms.float32)), call, number)
            else:
                plain(*boxed(value), call, number)

    def save_tree(stem: str, role: str, path: str, call: Any, tree: Any) -> None:  # compiled
        if isinstance(tree, dict):
            for key in tree:
                save_tree(stem, role, f"{path}.{key}", call, tree[key])
        elif isinstance(tree, (list, tuple)):
            for index in range(len(tree)):
                save_tree(stem, role, f"{path}.{index}", call, tree[index])
        elif isinstance(tree, ms.Tensor):
            save_tensor(stem, role, path, call, tree)

    return save_tree


def _make_watch(hand_over: Any, number_of: Any) -> Any:
    def pass_on(given: Any, _out: Any, gradients: Any) -> Any:  # compiled
        call, number = given[1], given[2]
        return ((hand_over(gradients[0], call, number), ops.zeros_like(call), ops.zeros_like(number)),)

    tap_gradient = _GradientTap(pass_on)

    def watch_tree(stem: str, role: str, path: str, call: Any, tree: Any) -> Any:  # compiled
        """The same tree with tensors whose gradients are handed over."""
        if isinstance(tree, tuple):
            items: Any = ()
            for index in range(len(tree)):
                items = (*items, watch_tree(stem, role, f"{path}.{index}", call, tree[index]))
            return items
        if isinstance(tree, list):
            entries = []
            for index in range(len(tree)):
                entries.append(watch_tree(stem, role, f"{path}.{index}", call, tree[index]))
            return entries
        if isinstance(tree, dict):
            fields = {}
            for key in tree:
                fields[key] = watch_tree(stem, role, f"{path}.{key}", call, tree[key])
            return fields
        if not isinstance(tree, ms.Tensor) or isinstance(tree, ms.Parameter):
            return tree
        if tree.dtype not in _DIFFERENTIABLE or not isconstant(tree.shape):
            return tree
        number = ms.Tensor([number_of(stem, role, path)], ms.int32)
        return tap_gradient((tree, call, number))[0]

    return watch_tree


def _make_wrap(capture: GraphCapture, number_of: Any, save_tree: Any, watch_tree: Any) -> Callable[[str, Any], Any]:
    begin = make_operator(_begin_function(capture), 1)
    end = make_operator(_end_function(capture), 2)

    def wrap(stem: str, original: Any) -> Any:
        def construct(self: Any, *args: Any, **kwargs: Any) -> Any:  # compiled
            if not is_compiled():
                return original(*args, **kwargs)
            call = begin(ms.Tensor([number_of(stem, BEGIN, "")], ms.int32))
            given: Any = ()
            for index in range(len(args)):
                save_tree(stem, INPUT, f"{index}", call, args[index])
                given = (*given, watch_tree(stem, INPUT_GRADIENT, f"{index}", call, args[index]))
            keywords = {}
            for name in kwargs:
                save_tree(stem, KEYWORD, name, call, kwargs[name])
                keywords[name] = watch_tree(stem, KEYWORD_GRADIENT, name, call, kwargs[name])
            output = original(*given, **keywords)
            if isinstance(output, tuple):
                for index in range(len(output)):
                    save_tree(stem, OUTPUT, f"{index}", call, output[index])
            else:
                save_tree(stem, OUTPUT, "0", call, output)
            end(call, ms.Tensor([number_of(stem, END, "")], ms.int32))
            if isinstance(output, tuple):
                results: Any = ()
                for index in range(len(output)):
                    results = (*results, watch_tree(stem, OUTPUT_GRADIENT, f"{index}", call, output[index]))
                return results
            return watch_tree(stem, OUTPUT_GRADIENT, "0", call, output)

        return construct

    return wrap


class _GradientTap(ops.Primitive):  # type: ignore[misc]
    """Returns what it is given. To the compiler it is an InsertGradientOf, whose function gets, besides the gradient,
    what was given: the call it belongs to. (A cell with a `bprop` inside a cell that is used twice gives wrong
    gradients of weights under `ms.jit`, 2.10.) Without the attributes that InsertGradientOf has for side effects: with
    them a cell inside a branch or a loop cannot be differentiated (2.10), and handing over is none to the compiler."""

    def __init__(self, backward: Any) -> None:
        super().__init__("InsertGradientOf")
        self.backward = backward


@bprop_getters.register(_GradientTap)  # type: ignore[untyped-decorator]
def _backward_of(tap: _GradientTap) -> Any:
    return tap.backward


_DIFFERENTIABLE = (ms.float16, ms.float32, ms.float64, ms.bfloat16, ms.complex64, ms.complex128)


def _begin_function(capture: GraphCapture) -> Callable[[Array], Array]:
    def begin(number: Array) -> Array:
        return np.array([capture.begin(int(number[0]))], np.int32)

    return begin


def _end_function(capture: GraphCapture) -> Callable[[Array, Array], Array]:
    def end(call: Array, number: Array) -> Array:
        capture.receive(int(number[0]), int(call[0]), _NOTHING, "")
        return call

    return end


def _plain_function(capture: GraphCapture) -> Callable[[Array, Array, Array, Array], Array]:
    def receive_plain(box: Array, shape: Array, call: Array, number: Array) -> Array:
        capture.receive(int(number[0]), int(call[0]), unboxed(box, shape), str(box.dtype))
        return call

    return receive_plain


def _bfloat16_function(capture: GraphCapture) -> Callable[[Array, Array, Array, Array], Array]:
    def receive_bfloat16(box: Array, shape: Array, call: Array, number: Array) -> Array:
        capture.receive(int(number[0]), int(call[0]), bfloat16_bits(unboxed(box, shape)), "bfloat16")
        return call

    return receive_bfloat16
