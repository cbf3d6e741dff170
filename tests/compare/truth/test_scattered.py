"""Which values of one run does the other have in parts?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.compare.truth.scattered import Scattered, find_rising, telling_numbers
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((6, 5))


def make_step(name: str, **results: Array) -> TrueStep:
    """A step of one call for each result, which takes X and is named after what it makes."""
    values = [TrueValue(0, X, "float32", None, "input.0")]
    calls: dict[str, TrueCall] = {}
    for position, (op, array) in enumerate(results.items()):
        call = f"Torch.{op}.0.forward"
        values.append(TrueValue(position + 1, array, "float32", call, "output.0"))
        calls[call] = TrueCall(
            call, position, "pytorch", "Torch", op, op, None, {"input.0": 0}, {"output.0": position + 1}
        )
    return TrueStep(name, calls, values, Coverage())


def scatter(reference: Mapping[str, Array], **candidate: Array) -> tuple[Scattered, list[TrueValue]]:
    steps = make_step("reference", **reference), make_step("candidate", **candidate)
    return Scattered(Counterparts(*steps)), steps[1].values[1:]


@pytest.mark.parametrize(
    ("parts", "is_there"),
    [
        ({"whole": np.exp(X)}, True),
        ({"first": np.exp(X[:2]), "second": np.exp(X[2:])}, True),
        ({"even": np.exp(X[:, ::2]), "odd": np.exp(X[:, 1::2])}, True),
        ({"first": np.exp(X[:2])}, True),  # the other run computes these rows only
        ({"turned": np.exp(X[::-1])}, False),
        ({"rolled": np.exp(np.roll(X, 1, 0))}, False),
        ({"other": np.exp(X * 1.001)}, False),
    ],
    ids=["whole", "halves", "columns", "some rows", "turned round", "rolled", "other numbers"],
)
def test_a_value_is_there_if_all_its_numbers_are_in_their_order(parts: dict[str, Array], is_there: bool) -> None:
    scattered, (value,) = scatter(parts, exp=np.exp(X))
    assert scattered.exists("candidate", value) is is_there


def test_what_is_only_put_together_of_what_is_there_is_not_there() -> None:
    scattered, (value,) = scatter({"exp": np.exp(X)}, flip=X[::-1].copy())
    step = scattered.steps["candidate"]
    assert step.only_moves(step.calls["Torch.flip.0.forward"])
    assert not scattered.exists("candidate", value)


def test_what_only_gets_another_shape_is_there_if_it_was_before() -> None:
    parts = {"first": np.exp(X[:2]), "second": np.exp(X[2:])}
    steps = make_step("reference", **parts), make_step("candidate", exp=np.exp(X), reshape=np.exp(X).reshape(5, 6))
    steps[1].calls["Torch.reshape.0.forward"].inputs["input.0"] = 1
    assert Scattered(Counterparts(*steps)).exists("candidate", steps[1].values[2])


def test_so_is_what_got_many_shapes() -> None:
    parts, count = {"first": np.exp(X[:2]), "second": np.exp(X[2:])}, 1200
    copies = {f"copy{number}": np.exp(X) for number in range(count)}
    steps = make_step("reference", **parts), make_step("candidate", exp=np.exp(X), **copies)
    for number in range(count):
        steps[1].calls[f"Torch.copy{number}.0.forward"].inputs["input.0"] = number + 1
    assert Scattered(Counterparts(*steps)).exists("candidate", steps[1].values[count + 1])


@pytest.mark.parametrize(("count", "is_there"), [(3, True), (2, False)])
def test_few_numbers_are_there_if_that_is_no_chance(count: int, is_there: bool) -> None:
    """A bias of three numbers that the other run has as a column of its weight; two may be there by chance."""
    joined = np.exp(X)
    scattered, (value,) = scatter({"joined": joined}, bias=joined[:count, 4].copy())
    assert scattered.exists("candidate", value) is is_there


def test_few_numbers_complete_the_parts_of_a_value() -> None:
    joined = np.exp(X)
    scattered, (value,) = scatter({"weight": joined[:, :4].copy(), "bias": joined[:, 4].copy()}, joined=joined)
    assert scattered.exists("candidate", value)


def test_all_values_that_hold_the_same_numbers_are_its_sources() -> None:
    parts = {"linear": np.exp(X[:2]), "squeeze": np.exp(X[:2]).reshape(5, 2), "other": np.exp(X[2:])}
    scattered, (value,) = scatter(parts, exp=np.exp(X))
    assert {one.number for one in scattered.of("candidate", value)} == {1, 2, 3}


def test_a_part_that_is_alone_among_its_like_says_nothing() -> None:
    """One step of a loop has the same numbers by chance; all the others have not."""
    names = ("loop", "loop")
    steps = make_step("reference", first=np.exp(X[:2]), second=np.cos(X[2:])), make_step("candidate", exp=np.exp(X))
    for call in steps[0].calls.values():
        call.op, call.module_path = names
    assert not Scattered(Counterparts(*steps)).exists("candidate", steps[1].values[1])


def test_a_mask_is_not_asked_for() -> None:
    scattered, (value,) = scatter({"exp": np.exp(X)}, tril=np.tril(np.ones((6, 6))))
    assert scattered.exists("candidate", value)


def test_whole_numbers_that_are_made_of_what_is_not_there_are_not_there() -> None:
    """Rounded numbers say nothing themselves."""
    steps = (
        make_step("reference", exp=np.exp(X)),
        make_step("candidate", cos=5 * np.cos(X), round=np.round(5 * np.cos(X))),
    )
    steps[1].calls["Torch.round.0.forward"].inputs["input.0"] = 1
    assert not Scattered(Counterparts(*steps)).exists("candidate", steps[1].values[2])


def test_a_value_with_a_nan_is_not_there_in_parts() -> None:
    spoilt = np.exp(X)
    spoilt[2, 3] = np.nan
    scattered, (value,) = scatter({"first": np.exp(X[:3]), "second": np.exp(X[3:])}, exp=spoilt)
    assert not scattered.exists("candidate", value)


def test_zeros_halves_and_masks_are_no_telling_numbers() -> None:
    assert telling_numbers(np.array([0.0, 1.0, -0.5, np.inf, np.nan, -1e9, 0.1])).tolist() == [0.1]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), max_size=7))
def test_the_longest_rising_choice_is_found(places: list[list[int]]) -> None:
    kept = find_rising(places)
    assert kept == sorted(set(kept)) and _rises([places[item] for item in kept])
    assert len(kept) == max(len(chosen) for chosen in _rising_choices(places))


def _rises(places: Sequence[Sequence[int]]) -> bool:
    last = -1
    for choices in places:
        later = [place for place in choices if place > last]
        if not later:
            return False
        last = min(later)
    return True


def _rising_choices(places: list[list[int]]) -> list[list[list[int]]]:
    """Every choice of items that can rise, found by trying all of them."""
    choices = product([False, True], repeat=len(places))
    listed = [[one for one, is_in in zip(places, chosen, strict=True) if is_in] for chosen in choices]
    return [one for one in listed if _rises(one)]


@pytest.mark.parametrize("is_turned_round", [False, True])
def test_halves_of_a_batch_are_found_where_rows_repeat_in_both(is_turned_round: bool) -> None:
    """The same word at the same place; the value is so large that not all of its numbers are looked at."""
    whole = np.random.default_rng(1).standard_normal((6, 9, 20))
    whole[4, 2], whole[5, 7], whole[3, 1] = whole[0, 2], whole[1, 7], whole[2, 1]
    taken = whole[:, ::-1].copy() if is_turned_round else whole
    found, (value,) = scatter({"exp": whole[:3], "sin": whole[3:]}, exp=taken)
    assert found.exists("candidate", value) == (not is_turned_round)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_halves_of_a_batch_are_found_where_their_axes_are_in_another_order(is_forgotten: bool) -> None:
    """Not where somebody has only given them the shape."""
    whole = np.random.default_rng(1).standard_normal((4, 9, 3, 5))
    turned = whole.transpose(0, 2, 1, 3)
    taken = np.roll(whole.reshape(4, 3, 9, 5).transpose(0, 2, 1, 3), 1, axis=1) if is_forgotten else whole
    found, (value,) = scatter({"exp": turned[:2].copy(), "sin": turned[2:].copy()}, exp=taken.copy())
    assert found.exists("candidate", value) == (not is_forgotten)
