"""The leaves of a record, which anyone may have written: a field of the wrong type is taken as absent, and the names of
places are bounded, whatever the keys are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tensorprobe.store.slot import TensorSlot, iter_slots

LEAF = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 2.0, "Min": -1.0}


def read(**fields: Any) -> TensorSlot:
    [slot] = iter_slots({**LEAF, **fields}, "output.0")
    assert isinstance(slot, TensorSlot)
    return slot


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([2, 3], (2, 3)),
        ([], ()),
        ([0, 1 << 62], (0, 1 << 62)),
        ([1 << 63], (1 << 63,)),
        ([1] * 64, (1,) * 64),
        ([1] * 65, None),
        ([(1 << 63) + 1], None),
        ([1 << 32, 1 << 32], None),
        ([2, -1], None),
        ([True, 2], None),
        ([2.0], None),
        ("23", None),
    ],
    ids=str,
)
def test_a_shape_is_one_that_a_tensor_can_have(shape: Any, expected: tuple[int, ...] | None) -> None:
    slot = read(shape=shape)
    assert slot.shape == expected
    assert slot.element_count == (None if expected is None else math.prod(expected))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.5, 1.5), (True, True), (-(1 << 64), -(1 << 64)), ((1 << 64) + 1, None), (10**400, None), ("1", None)],
)
def test_a_statistic_is_a_number_that_a_tensor_can_hold(value: Any, expected: Any) -> None:
    slot = read(Max=value, Min=value, Mean=value, Norm=value)
    assert [slot.max, slot.min, slot.mean, slot.norm] == [expected] * 4


def test_nan_and_inf_are_known_by_their_counts_or_else_by_the_extremes() -> None:
    assert (read().nan_count, read().has_nan, read().has_inf) == (None, False, False)
    assert read(Max=math.nan).has_nan and read(Min=math.nan).has_nan
    assert read(Max=math.inf).has_inf and read(Min=-math.inf).has_inf
    counted = read(nan_count=3, Max=math.inf)
    assert (counted.nan_count, counted.inf_count, counted.has_nan, counted.has_inf) == (3, 0, True, False)
    assert read(inf_count=1).has_inf and not read(inf_count=1).has_nan


@pytest.mark.parametrize("count", [True, -1, 1.0, "3", (1 << 63) + 1, None])
def test_a_count_that_is_none_is_taken_as_zero(count: Any) -> None:
    assert (read(nan_count=count).nan_count, read(nan_count=count).has_nan) == (0, False)


@pytest.mark.parametrize(("given", "expected"), [(True, True), (False, False), (1, None), ("yes", None)])
def test_requires_grad_is_yes_or_no(given: Any, expected: bool | None) -> None:
    assert read(requires_grad=given).requires_grad is expected


def test_a_hash_comes_before_a_crc() -> None:
    assert read(md5="0123abcd").checksum == "0123abcd"
    assert read(md5="0123abcd", hash="f" * 32).checksum == "f" * 32
    assert read(md5="0123abcd", hash=7).checksum == "0123abcd"


def test_a_long_key_is_not_repeated_for_each_of_its_leaves() -> None:
    tree = {"k" * 100_000: [0] * 10_000, "k" * 99_999: [0]}
    slots = list(iter_slots(tree, "kwargs"))
    assert sum(len(slot.slot) for slot in slots) <= 250 * len(slots)
    assert len({slot.slot for slot in slots}) == len(slots) == 10_001


def test_a_place_below_many_keys_has_a_name_of_its_own() -> None:
    tree: Any = [1, 2]
    for number in range(400):
        tree = {f"key{number}": tree}
    first, second = (slot.slot for slot in iter_slots(tree, "kwargs"))
    assert first != second and first.startswith("kwargs.key399.key398.") and len(first) <= 250


def test_usual_names_stay_as_they_are() -> None:
    tree = {"a": [{"b": 1}], "c.d": 2, "\ud800": 3}
    assert [slot.slot for slot in iter_slots(tree, "")] == ["a.0.b", "c.d", "\ud800"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([1, 2.5, -3.0, 0], (1.0, 2.5, -3.0, 0.0)),
        ([1.0, 2.0, 3.0], None),
        ([1.0, 2.0, 3.0, math.nan], None),
        ([1.0, 2.0, 3.0, True], None),
        ([1.0, 2.0, 3.0, "4"], None),
        ([1.0, 2.0, 3.0, 10**400], None),
        ({"0": 1.0}, None),
    ],
)
def test_a_sketch_is_four_finite_numbers_or_none_at_all(written: Any, read: tuple[float, ...] | None) -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Sketch": written}
    (slot,) = iter_slots(leaf, "output.0")
    assert isinstance(slot, TensorSlot)
    assert slot.sketch == read
