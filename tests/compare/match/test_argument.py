"""Arguments that are no tensors: exactly the same, or a difference."""

from __future__ import annotations

import pytest

from tensorprobe.compare.match.argument import compare_lone, compare_said
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot
from tests.compare.tensor_slot import make_slot


def compare_integers(op: str, slot: str, reference: int, candidate: int) -> str:
    """In a call on a tensor of rank 3."""
    first, second = (PlainSlot(slot, "int", value, is_input=True) for value in (reference, candidate))
    calls = (call(op, first), call(op, second))
    return compare_said(first, second, calls).status


def call(op: str, slot: PlainSlot) -> Call:
    slots = (make_slot(slot="input.0", shape=(4, 5, 6), is_input=True), slot)
    prefix = "Ops" if op.startswith("aten.") else "Torch"
    return Call(f"{prefix}.{op}.0.forward", 0, "api", prefix, op, 0, "forward", "", None, None, slots)


@pytest.mark.parametrize(
    ("op", "slot"),
    [
        ("softmax", "input.1"),
        ("softmax", "kwargs.dim"),
        ("transpose", "input.2"),
        ("permute", "input.1.0"),
        ("roll", "input.2"),
        ("topk", "input.2"),
        ("sum", "kwargs.axis"),
        ("mode", "input.1"),
        ("aten.sum.dim_IntList", "input.1"),
        ("my_norm", "kwargs.axis"),
    ],
)
def test_the_last_dimension_may_be_counted_from_either_end(op: str, slot: str) -> None:
    assert compare_integers(op, slot, -1, 2) == "equal"
    assert compare_integers(op, slot, -1, 1) == "different"


def test_a_tensor_of_unknown_shape_does_not_say_how_many_dimensions_there_are() -> None:
    first, second = (PlainSlot("kwargs.dim", "int", value, is_input=True) for value in (-1, 2))
    shapeless = make_slot(slot="input.1", shape=None, is_input=True)
    for slots, status in (((shapeless,), "different"), ((shapeless, make_slot(shape=(4, 5, 6))), "equal")):
        alone = Call("Torch.softmax.0.forward", 0, "api", "Torch", "softmax", 0, "forward", "", None, None, slots)
        assert compare_said(first, second, (alone, alone)).status == status


@pytest.mark.parametrize(
    ("op", "slot"),
    [
        ("add", "input.1"),
        ("__mul__", "input.1"),
        ("pow", "input.1"),
        ("clamp", "kwargs.min"),
        ("masked_fill", "input.2"),
        ("roll", "input.1"),
        ("select", "input.2"),
        ("narrow", "input.2"),
    ],
)
def test_a_number_that_is_no_dimension_is_compared_exactly(op: str, slot: str) -> None:
    assert compare_integers(op, slot, -1, 2) == "different"


@pytest.mark.parametrize(("dimension", "status"), [(2, "equal"), (-1, "equal"), (1, "not comparable")])
def test_a_dimension_that_the_other_framework_has_as_its_default_is_the_same(dimension: int, status: str) -> None:
    given = PlainSlot("kwargs.dim", "int", dimension, is_input=True)
    tensor = make_slot(slot="input.0", shape=(4, 5, 6), is_input=True)
    name = "Functional.softmax.0.forward"
    reference = Call(
        name, 0, "api", "Functional", "softmax", 0, "forward", "", None, None, (tensor, given), framework="pytorch"
    )
    candidate = Call(
        name, 0, "api", "Functional", "softmax", 0, "forward", "", None, None, (tensor,), framework="mindspore"
    )
    assert compare_lone(given, None, (reference, candidate)).status == status
