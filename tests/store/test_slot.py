"""The names of the places in a record are bounded, whatever its keys are."""

from __future__ import annotations

from typing import Any

from tensorprobe.store.slot import iter_slots


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
