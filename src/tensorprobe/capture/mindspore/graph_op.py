"""Python functions that run inside a compiled graph: with a value when it is computed, with a gradient when it comes.

Much of this file is read by MindSpore's graph compiler, not run by Python: functions and classes that say so keep to
what it understands. A graph runs asynchronously, on threads of its own: `receive` is called from those.

Tried on CPU, where a Python function can be an operator. On Ascend and GPU it cannot: there MindSpore's own TensorDump
writes the files, which has not been tried.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.ops.functional import isconstant
from mindspore.ops.primitive import PrimitiveWithInfer, _run_op

from tensorprobe.errors import UsageError

Array = np.ndarray[Any, Any]
Receive = Callable[[str, str, Array, str], None]
"""`receive(folder, name, array, dtype)`: the array is the runtime's own memory, good until the function returns."""
DumpPath = Callable[[str, str], str]

_DUMP_STEP = "<tensordump-update-step>"  # MindSpore's own word for it, in place of a file name


def writes_from_python(device_target: str) -> bool:
    """Whether a graph on this device can call Python (CPU), or has only MindSpore's TensorDump."""
    if device_target == "CPU":
        return True
    if device_target in ("Ascend", "GPU"):
        return False
    raise UsageError(f"save in a compiled graph: the device target is CPU, Ascend or GPU, not {device_target!r}")


class _IsCompiled(PrimitiveWithInfer):  # type: ignore[misc]
    """True for the graph compiler, False for Python: the compiler infers it, Python calls it."""

    def __init__(self) -> None:
        super().__init__("tensorprobe_is_compiled")
        self.set_const_prim(True)
        self.add_prim_attr("constexpr_prim", True)

    def __infer__(self) -> dict[str, Any]:
        return {"dtype": None, "shape": None, "value": True}

    def __call__(self) -> bool:
        return False


is_compiled = _IsCompiled()


def dump_into_step(folder: str, name: str) -> str:
    """A path for MindSpore's TensorDump, with braces that it fills."""
    return str(Path(folder) / "{step}" / "{rank}" / name)


def make_taps(receive: Receive, dump_path: DumpPath = dump_into_step) -> tuple[Any, Any]:
    """Two classes for compiled code: `ValueTap(folder, name)(tensor)` and
    `tensor = GradientTap(folder, name)(tensor)`. Folder and name are constants of the graph; where MindSpore's
    TensorDump writes, `dump_path` makes a path of them."""

    @ms.jit_class
    class ValueTap:
        """What it is called with reaches `receive` each time the graph comes by."""

        def __init__(self, folder: str, name: str) -> None:
            self.write = _make_writer(receive, folder, name, dump_path)

        def __call__(self, tensor: Any) -> Any:
            return self.write(ops.stop_gradient(tensor))

    @ms.jit_class
    class GradientTap:
        """The gradient of what it returns reaches `receive`, if the graph computes it, and goes on unchanged."""

        def __init__(self, folder: str, name: str) -> None:
            self.identity = ops.InsertGradientOf(_make_gradient_function(receive, folder, name, dump_path))
            self.identity.del_prim_attr("side_effect_backprop")  # with it no cell in a branch can be differentiated

        def __call__(self, tensor: Any) -> Any:
            return self.identity(tensor)

    return ValueTap, GradientTap


def make_ordered_gradient_tap(receive: Receive) -> Any:
    """A class like `GradientTap`, for CPU, whose gradients come after all values that were tapped before it.

    Left alone, a graph (2.10) writes gradients as soon as it has them, in most steps before any value of the forward.
    Here the tensor waits until the values before it are written, and its gradient waits for the tensor.
    """

    class OrderedGradientTap(nn.Cell):  # type: ignore[misc]
        def __init__(self, folder: str, name: str) -> None:
            super().__init__()
            self.wait = make_operator(_take_turn, 1)
            self.turn = ms.Tensor([0], ms.int32)
            self.write = _PythonWriter(receive, folder, name, is_ordered=False)

        def construct(self, tensor: Any) -> Any:  # compiled
            return ops.depend(tensor, self.wait(self.turn))

        def bprop(self, tensor: Any, out: Any, gradient: Any) -> Any:  # compiled
            waited = ops.depend(gradient, out)
            return (ops.depend(waited, self.write(waited)),)

    return OrderedGradientTap


def _take_turn(_turn: Array) -> Array:
    return _DONE


def _make_writer(receive: Receive, folder: str, name: str, dump_path: DumpPath) -> Any:
    if writes_from_python(ms.get_context("device_target")):
        return _PythonWriter(receive, folder, name)
    return _DumpWriter(dump_path(folder, name))


def _make_gradient_function(receive: Receive, folder: str, name: str, dump_path: DumpPath) -> Callable[[Any], Any]:
    if writes_from_python(ms.get_context("device_target")):
        write = _PythonWriter(receive, folder, name, is_ordered=False)

        def pass_on(gradient: Any) -> Any:  # compiled; without `depend` the writing would be dead code
            return ops.depend(gradient, write(gradient))

        return pass_on
    dump = _DumpWriter(dump_path(folder, name))

    def dump_and_pass_on(gradient: Any) -> Any:  # compiled
        dump(gradient)
        return gradient

    return dump_and_pass_on


@ms.jit_class
class _PythonWriter:
    """Calls `receive` with a tensor. Calls of ordered writers happen in the order of the program, and happen although
    nobody uses their result; inside the computation of a gradient the compiler knows no such order (2.10)."""

    def __init__(self, receive: Receive, folder: str, name: str, is_ordered: bool = True) -> None:
        self.name = name
        self.plain = make_operator(_plain_receiver(receive, folder, name), 2, is_ordered=is_ordered)
        self.bfloat16 = make_operator(_bfloat16_receiver(receive, folder, name), 2, is_ordered=is_ordered)

    def __call__(self, tensor: Any) -> Any:  # compiled
        if not isconstant(tensor.shape):
            _refuse_shape(self.name)
        if tensor.dtype == ms.bfloat16:  # no operator in Python takes one
            return self.bfloat16(*boxed(ops.cast(tensor, ms.float32)))
        return self.plain(*boxed(tensor))


def boxed(tensor: Any) -> Any:  # compiled
    """A tensor as an operator in Python takes it, and its shape: with elements, and with dimensions, since without any
    it would arrive as a number that has lost its dtype."""
    if 0 in tensor.shape:
        return ops.zeros((1,), tensor.dtype), ops.TensorShape()(tensor)
    if tensor.shape == ():
        return ops.reshape(tensor, (1,)), _NO_DIMENSION
    return tensor, ops.TensorShape()(tensor)


@ms.constexpr  # type: ignore[untyped-decorator]
def _refuse_shape(name: str) -> None:
    raise UsageError(
        f"save and save_grad in a compiled graph: the shape of {name!r} is known only when the graph runs "
        "(nonzero, unique, masked_select, dynamic inputs), which MindSpore cannot hand to Python; save it in PyNative"
    )


@ms.jit_class
class _DumpWriter:
    """MindSpore's own operator, which can put the step and the rank into the path and numbers the files itself."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.dump = ops.TensorDump()

    def __call__(self, tensor: Any) -> Any:  # compiled
        return self.dump(self.file, tensor)


def make_operator(function: Callable[..., Array], arguments: int, *, is_ordered: bool = True) -> Any:
    """A Python function as an operator of a graph. It takes so many arrays and returns an int32 array of one element,
    which has no gradient. An ordered one runs in the order of the program, and although nobody uses its result."""
    operator = ops.Custom(function, (1,), ms.int32, func_type="pyfunc", bprop=_NO_GRADIENT[arguments])
    if is_ordered:
        operator.add_prim_attr("side_effect_io", True)
    return operator


def _no_gradient_1(first: Any, _out: Any, _gradient: Any) -> Any:  # compiled
    return (ops.zeros_like(first),)


def _no_gradient_2(first: Any, second: Any, _out: Any, _gradient: Any) -> Any:  # compiled
    return ops.zeros_like(first), ops.zeros_like(second)


def _no_gradient_4(first: Any, second: Any, third: Any, fourth: Any, _out: Any, _gradient: Any) -> Any:  # compiled
    return ops.zeros_like(first), ops.zeros_like(second), ops.zeros_like(third), ops.zeros_like(fourth)


_NO_GRADIENT = {1: _no_gradient_1, 2: _no_gradient_2, 4: _no_gradient_4}


def _plain_receiver(receive: Receive, folder: str, name: str) -> Callable[[Array, Array], Array]:
    def receive_plain(box: Array, shape: Array) -> Array:
        receive(folder, name, unboxed(box, shape), str(box.dtype))
        return _DONE

    return receive_plain


def _bfloat16_receiver(receive: Receive, folder: str, name: str) -> Callable[[Array, Array], Array]:
    def receive_bfloat16(box: Array, shape: Array) -> Array:
        receive(folder, name, bfloat16_bits(unboxed(box, shape)), "bfloat16")
        return _DONE

    return receive_bfloat16


def unboxed(box: Array, shape: Array) -> Array:
    """What `boxed` was given, on the other side."""
    if shape[0] < 0:
        return box.reshape(())
    return box if shape.all() else np.empty(shape, box.dtype)


_DONE = np.zeros(1, np.int32)
_NO_DIMENSION = ms.Tensor([-1], ms.int64)


def bfloat16_bits(widened: Array) -> Array:
    """The two bytes an element that were widened to float32: its upper half."""
    bits = widened.reshape(-1).view(np.uint32) >> np.uint32(16)
    return bits.astype(np.uint16).view("V2").reshape(widened.shape)


def advance_dump_step() -> None:
    """Tell TensorDump, which has its own idea of the step. Not tried: it runs on Ascend only."""
    if not writes_from_python(ms.get_context("device_target")):
        ms.runtime.synchronize()
        _run_op(ops.TensorDump(), "TensorDump", (_DUMP_STEP, ms.Tensor([1], ms.float32)))
        ms.runtime.synchronize()
