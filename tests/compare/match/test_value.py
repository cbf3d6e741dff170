"""One slot against its counterpart, before it is measured: what is a difference by itself."""

from __future__ import annotations

import pytest

from tensorprobe.compare.match.value import make_value
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, Slot
from tests.compare.tensor_slot import make_slot

TENSOR_IN, TENSOR_OUT = make_slot(slot="input.0", shape=(2,), is_input=True), make_slot(slot="output.0", shape=(2,))
NUMBER_IN = PlainSlot("kwargs.strength", "float", 0.5, is_input=True)
NUMBER_OUT = PlainSlot("output.0", "float", 0.5)


def paired(direction: str = "forward", frameworks: tuple[str, str] = ("pytorch", "pytorch")) -> tuple[Call, Call]:
    name = f"Torch.sharpen.0.{direction}"
    first, second = (
        Call(name, 0, "api", "Torch", "sharpen", 0, direction, "", None, None, (), framework=framework)
        for framework in frameworks
    )
    return first, second


@pytest.mark.parametrize(
    ("slot", "direction", "is_missed", "is_missed_across"),
    [
        (TENSOR_IN, "forward", False, False),
        (NUMBER_IN, "forward", True, True),
        (TENSOR_OUT, "forward", True, False),
        (NUMBER_OUT, "forward", True, False),
        (TENSOR_OUT, "backward", True, True),
        (NUMBER_OUT, "backward", True, False),
        (TENSOR_OUT, "recompute", False, False),
        (NUMBER_OUT, "recompute", True, False),
    ],
)
def test_what_only_one_side_has_is_a_difference_by_itself_where_the_other_should_have_it(
    slot: Slot, direction: str, is_missed: bool, is_missed_across: bool
) -> None:
    for pair, expected in (
        (paired(direction), is_missed),
        (paired(direction, ("pytorch", "mindspore")), is_missed_across),
    ):
        for value in (make_value(slot, None, pair), make_value(None, slot, pair)):
            assert (value.status, value.is_mismatch) == ("not comparable", expected)


def test_a_tensor_against_a_number_is_a_difference_except_across_frameworks() -> None:
    value = make_value(TENSOR_IN, NUMBER_IN, paired())
    assert (value.reason, value.is_mismatch) == ("a tensor only in the reference", True)
    value = make_value(NUMBER_IN, TENSOR_IN, paired())
    assert (value.reason, value.is_mismatch) == ("a tensor only in the candidate", True)
    assert not make_value(TENSOR_IN, NUMBER_IN, paired(frameworks=("pytorch", "mindspore"))).is_mismatch


def test_two_tensors_wait_for_their_measurement_and_two_numbers_do_not() -> None:
    value = make_value(TENSOR_IN, TENSOR_IN, paired(frameworks=("mindspore", "pytorch")))
    assert (value.status, value.is_mismatch, value.is_across_frameworks) == ("not comparable", False, True)
    assert not make_value(TENSOR_IN, TENSOR_IN, paired()).is_across_frameworks
    assert make_value(NUMBER_IN, NUMBER_IN, paired()).status == "equal"
    other = PlainSlot("kwargs.strength", "float", 0.7, is_input=True)
    assert make_value(NUMBER_IN, other, paired()).status == "different"
