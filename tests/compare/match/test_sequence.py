"""The alignment of two sequences, exact and approximate, against what is known of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.compare.match import sequence
from tensorprobe.compare.match.fingerprint import Fingerprint
from tensorprobe.compare.match.sequence import Items, align_sequence, longest_rising
from tests.length import count_examples


def items(ops: list[int], values: list[int] | None = None) -> Items:
    """Operations, and for each a value; 0 tells nothing."""
    made = Items()
    for place, op in enumerate(ops):
        value = values[place] if values else 0
        made.add(Fingerprint(op, op, (value,), (value,)))
    return made


def test_a_missing_stretch_is_left_out_in_one_piece() -> None:
    layer = [1, 2, 3, 2]
    pairs = align_sequence(items([9, *layer, *layer, *layer, 8]), items([9, *layer, *layer, 8]))
    left_out = sorted(set(range(14)) - {one for one, _ in pairs})
    assert left_out == list(range(left_out[0], left_out[0] + 4))


def test_values_tell_which_of_equal_stretches_is_missing() -> None:
    layer = [1, 2, 3]
    reference = items([*layer * 4], [11, 0, 0, 12, 0, 0, 13, 0, 0, 14, 0, 0])
    candidate = items([*layer * 3], [11, 0, 0, 13, 0, 0, 14, 0, 0])
    pairs = align_sequence(reference, candidate)
    assert [one for one, _ in pairs] == [0, 1, 2, 6, 7, 8, 9, 10, 11]


def test_equal_values_of_another_operation_make_no_pair() -> None:
    assert align_sequence(items([1, 2], [7, 8]), items([3, 4, 5], [7, 8, 9])) == []


def test_calls_of_another_shape_are_paired_when_nothing_better_is_there() -> None:
    reference, candidate = Items(), Items()
    for op, shape, other in ((1, 10, 20), (2, 11, 21)):
        reference.add(Fingerprint(op, shape, (), ()))
        candidate.add(Fingerprint(op, other, (), ()))
    candidate.add(Fingerprint(1, 10, (), ()))
    assert align_sequence(reference, candidate) == [(0, 0), (1, 1)]


def test_known_producers_break_ties() -> None:
    reference, candidate = Items(), Items()
    reference.add(Fingerprint(1, 1, (), ()), flow=(5,))
    candidate.add(Fingerprint(1, 1, (), ()), flow=(4,))
    candidate.add(Fingerprint(1, 1, (), ()), flow=(5,))
    assert align_sequence(reference, candidate) == [(0, 1)]


@pytest.mark.parametrize("has_values", [True, False])
def test_thousands_of_calls_with_a_stretch_missing(has_values: bool) -> None:
    layer = [1, 2, 3, 2, 4, 4, 5]
    count = 300
    ops = [9, *layer * count, 8]
    values = [0, *[100 + place if op in (1, 5) else 0 for place, op in enumerate(layer * count)], 0]
    cut = slice(1 + 7 * 100, 1 + 7 * 101)
    kept = [place for place in range(len(ops)) if not cut.start <= place < cut.stop]
    candidate = items([ops[place] for place in kept], [values[place] for place in kept] if has_values else None)
    pairs = align_sequence(items(ops, values if has_values else None), candidate)
    assert len(pairs) == len(kept)
    if has_values:
        assert [one for one, _ in pairs] == kept


def test_values_that_are_equal_by_chance_are_no_anchors() -> None:
    numbers = random.Random(0)
    ops = [numbers.randrange(3) for _ in range(400)]
    values = list(range(1, 401))
    shuffled = values[:]
    numbers.shuffle(shuffled)
    pairs = align_sequence(items([7, *ops], [0, *values]), items([*ops], shuffled))
    assert len(pairs) == 400


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_any_two_sequences_give_rising_pairs_of_equal_operations(reference: list[int], candidate: list[int]) -> None:
    pairs = align_sequence(items(reference), items(candidate))
    assert all(reference[one] == candidate[other] for one, other in pairs)
    assert pairs == longest_rising(pairs)
    assert len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)


sequences = st.lists(st.integers(0, 3), min_size=1, max_size=24)


@settings(max_examples=count_examples(100))
@given(sequences, sequences, st.booleans())
def test_the_longest_common_subsequence_is_the_longest(
    reference: list[int], candidate: list[int], is_split: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if is_split:
            patch.setattr(sequence, "_STORED_CELLS", 4)
        part = (0, len(reference), 0, len(candidate))
        pairs = sequence._align_common(reference, candidate, part)
    assert len(pairs) == length_of_common(reference, candidate)
    assert all(reference[one] == candidate[other] for one, other in pairs)
    assert pairs == longest_rising(pairs)


def length_of_common(reference: list[int], candidate: list[int]) -> int:
    """By the book."""
    best = [0] * (len(candidate) + 1)
    for one in reference:
        before = 0
        for place, other in enumerate(candidate, 1):
            kept = best[place]
            best[place] = before + 1 if one == other else max(best[place], best[place - 1])
            before = kept
    return best[-1]
