"""Two sequences are aligned at the least cost, every entry once and in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorprobe.errors import UsageError
from tensorprobe.migrator import edit_distance
from tensorprobe.migrator.edit_distance import EditCosts, IndexPair, align_sequences

values = st.lists(st.sampled_from([(2, 3), (3,), (), (4,)]), max_size=8)
costs = st.builds(EditCosts, *[st.sampled_from([0, 0.3, 1, 2.5, 5])] * 3)


def price(pairs: Sequence[IndexPair], reference: list[object], candidate: list[object], costs: EditCosts) -> float:
    total = 0.0
    for first, second in pairs:
        if first is None:
            total += costs.insert
        elif second is None:
            total += costs.delete
        elif reference[first] != candidate[second]:
            total += costs.replace
    return total


def least_price(reference: list[object], candidate: list[object], costs: EditCosts) -> float:
    """By the definition, one cell after another."""

    @cache
    def of(first: int, second: int) -> float:
        if first == 0 or second == 0:
            return first * costs.delete + second * costs.insert
        change = 0 if reference[first - 1] == candidate[second - 1] else costs.replace
        return min(
            of(first - 1, second) + costs.delete,
            of(first, second - 1) + costs.insert,
            of(first - 1, second - 1) + change,
        )

    return of(len(reference), len(candidate))


@example([(2, 3), (3,), (), (4,)], [(4,), (3,), (2, 3), (4,)], EditCosts())
@example([(), (3,), (4,)], [(2, 3), (3,), (), (4,)], EditCosts())
@example([(2, 3), (3,), (), (4,)], [(), (3,), (4,)], EditCosts())
@given(values, values, costs)
def test_the_alignment_has_every_entry_once_in_order_at_the_least_cost(
    reference: list[object], candidate: list[object], costs: EditCosts
) -> None:
    pairs = align_sequences(reference, candidate, costs)
    assert [first for first, _ in pairs if first is not None] == list(range(len(reference)))
    assert [second for _, second in pairs if second is not None] == list(range(len(candidate)))
    assert price(pairs, reference, candidate, costs) == pytest.approx(least_price(reference, candidate, costs))


def test_what_is_missing_in_the_middle_is_left_out() -> None:
    assert align_sequences("abcd", "abd") == [(0, 0), (1, 1), (2, None), (3, 2)]
    assert align_sequences("bxy", "bay") == [(0, 0), (1, None), (None, 1), (2, 2)]


def test_a_cheap_replacement_pairs_what_is_not_equal() -> None:
    assert align_sequences("bxy", "bay", EditCosts(replace=1)) == [(0, 0), (1, 1), (2, 2)]


def test_what_is_not_known_is_equal_to_nothing() -> None:
    assert sorted(align_sequences([None], [None]), key=str) == [(0, None), (None, 0)]


def test_positions_are_plain_integers() -> None:
    positions = [position for pair in align_sequences("abxcd", "aycd") for position in pair if position is not None]
    assert len(positions) == 9
    assert {type(position) for position in positions} == {int}


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), "1", True])
def test_a_cost_is_a_number_that_is_not_negative(cost: object) -> None:
    with pytest.raises(UsageError, match="the cost to insert is"):
        EditCosts(insert=cost)  # type: ignore[arg-type]


def test_too_many_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_distance, "_MAX_CELLS", 5)
    with pytest.raises(UsageError, match=r"3 files against 2 are too many .* folder by folder"):
        align_sequences("abc", "xy")
