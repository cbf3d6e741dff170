"""Which values of two calls are what they keep from one step to the next."""

from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.compare.judge.kept_state import find_kept, is_kept, keeps_otherwise
from tensorprobe.compare.match.alignment import Match
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.result import Status, ValuePair
from tensorprobe.run.call import Call, name_call
from tensorprobe.store.slot import TensorSlot
from tests.compare.tensor_slot import make_slot


def call(name: str, framework: str, slots: list[TensorSlot]) -> Call:
    made = name_call(name)
    made.framework, made.slots = framework, tuple(slots)
    return made


def given(place: str, **fields: Any) -> TensorSlot:
    return make_slot(slot=place, is_input=True, shape=(8,), **fields)


INPUT, MEAN = given("input.0", source="Functional.conv2d.0.forward"), given("input.1", requires_grad=False)
NAMES = ("gamma", "beta", "moving_mean", "moving_variance")
PORT = [
    given("input.0", source="Primitive.conv2d.Conv2D.0.forward"),
    *(
        given(f"input.{place}", parameter=f"norm.{name}", requires_grad=place < 3)
        for place, name in enumerate(NAMES, 1)
    ),
]


def pair(other: TensorSlot, status: Status = "equal", of_input: Status = "close") -> PairedCall:
    """The norm of PyTorch, its running mean held against `other`, a place of MindSpore's."""
    reference = call("Functional.batch_norm.0.forward", "pytorch", [INPUT, MEAN])
    candidate = call("Primitive.bn_train.BatchNorm.0.forward", "mindspore", PORT)
    made = PairedCall(Match((reference,), (candidate,), "same name"), 0, 0)
    made.hold([ValuePair(INPUT, PORT[0], of_input, None), ValuePair(MEAN, other, status, None)])
    return made


@pytest.mark.parametrize(("place", "name"), enumerate(NAMES, 1))
def test_a_running_mean_is_kept_where_it_stands_against_a_running_mean(place: int, name: str) -> None:
    found = pair(PORT[place])
    assert [is_kept(found, value) for value in found.values] == [False, name == "moving_mean"]


@pytest.mark.parametrize(("of_input", "is_told"), [("close", True), ("different", False), ("not comparable", False)])
def test_it_is_told_where_it_was_written_otherwise_out_of_the_same(of_input: Status, is_told: bool) -> None:
    kept = find_kept([pair(PORT[3], "equal", of_input)])
    assert keeps_otherwise(pair(PORT[3], "different"), kept) is is_told
    assert not keeps_otherwise(pair(PORT[3], "close"), kept)


def test_what_differs_from_the_start_was_written_by_no_step() -> None:
    kept = find_kept([pair(PORT[3], "different")])
    assert not keeps_otherwise(pair(PORT[3], "different"), kept)
    assert not keeps_otherwise(pair(PORT[3], "different"), frozenset())
