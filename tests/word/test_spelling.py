"""Operations that are written differently and are the same, and those that are not."""

from __future__ import annotations

import pytest

from tensorprobe.run.call import Call
from tensorprobe.word.spelling import canonical_op


def call(name: str) -> Call:
    prefix, _, op = name.partition(".")
    return Call(name, 0, "api", prefix, op, 0, "forward", "", None, None, ())


@pytest.mark.parametrize(
    "names",
    [
        ("Tensor.add", "Tensor.__add__", "Tensor.__radd__", "Tensor.__iadd__", "Tensor.add_", "Torch.add"),
        ("Tensor.add", "Ops.aten.add.Tensor", "Ops.aten.add_.Tensor"),
        ("Tensor.mul", "Tensor.__mul__", "Tensor.__rmul__", "Torch.multiply", "Tensor.mul_"),
        ("Tensor.matmul", "Tensor.__matmul__", "Torch.matmul"),
        ("Tensor.div", "Tensor.__truediv__", "Tensor.__itruediv__", "Torch.true_divide", "Torch.divide"),
        ("Tensor.sub", "Tensor.__sub__", "Tensor.__isub__", "Torch.subtract"),
        ("Torch.relu", "Tensor.relu_", "Functional.relu", "Functional.relu_"),
        ("Tensor.softmax", "Functional.softmax", "Torch.softmax", "Ops.aten._softmax.default"),
        ("Tensor.__getitem__", "Tensor.__getitem__"),
        ("Tensor.pow", "Tensor.__pow__"),
        ("Tensor.eq", "Tensor.__eq__"),
        ("Tensor.invert", "Tensor.__invert__"),
        ("Tensor._", "Tensor._"),
    ],
)
def test_one_operation_in_many_spellings(names: tuple[str, ...]) -> None:
    assert len({canonical_op(call(name)) for name in names}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Tensor.sub", "Tensor.__rsub__"),
        ("Tensor.div", "Tensor.__rtruediv__"),
        ("Tensor.pow", "Tensor.__rpow__"),
        ("Tensor.matmul", "Tensor.__rmatmul__"),
        ("Torch.add", "Torch.addmm"),
        ("Tensor.__getitem__", "Tensor.__setitem__"),
        ("Tensor.__index__", "Tensor.ndex"),
        ("Tensor._", "Tensor.__"),
        ("Ops.mylib.add.default", "Tensor.add"),
    ],
)
def test_operations_that_differ_stay_apart(one: str, other: str) -> None:
    assert canonical_op(call(one)) != canonical_op(call(other))


def test_a_module_is_no_api() -> None:
    module = Call("Module.add.add.forward.0", 0, "module", "Module", "add", 0, "forward", "add", None, None, ())
    assert canonical_op(module) != canonical_op(call("Torch.add"))
