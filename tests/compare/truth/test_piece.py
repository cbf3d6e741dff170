"""Weights that one run holds in one tensor and the other in several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.compare.truth.piece import find_pieces, pair_overlaps
from tensorprobe.replay.true_step import Array, TrueValue

WHOLE = np.random.default_rng(0).normal(size=(6, 8))


def make_leaf(array: Array, number: int = 0) -> TrueValue:
    return TrueValue(number, array, "float32", None, "input.1")


def locate(part: Array, whole: Array) -> Array | None:
    found = next(find_pieces([make_leaf(part)], [make_leaf(whole)]), None)
    return None if found is None else found.places


@pytest.mark.parametrize(
    "cut",
    [
        lambda array: array[2:4],
        lambda array: array[:, 2:5],
        lambda array: array[:, 2:5].T,
        lambda array: array[::2],
        lambda array: array[None, :, 4:],
        lambda array: array[[3, 4, 5, 0, 1, 2]],
    ],
    ids=["rows", "columns", "columns, transposed", "every second row", "with an axis more", "in another order"],
)
def test_a_piece_is_found_wherever_its_numbers_are(cut) -> None:  # type: ignore[no-untyped-def]
    part = np.ascontiguousarray(cut(WHOLE))
    places = locate(part, WHOLE)
    assert places is not None and np.array_equal(WHOLE.reshape(-1)[places], part.reshape(-1))


@settings(deadline=None)
@given(st.sets(st.integers(0, 47), min_size=4), st.integers(0, 9))
def test_any_choice_of_elements_is_a_piece(chosen: set[int], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(sorted(chosen))
    places = locate(WHOLE.reshape(-1)[order], WHOLE)
    assert places is not None and np.array_equal(places, order)


def test_other_numbers_are_no_piece() -> None:
    assert locate(WHOLE[:2] * 1.001, WHOLE) is None
    assert locate(np.concatenate([WHOLE[0], WHOLE[0] + 1]), WHOLE) is None


def test_where_numbers_occur_twice_only_a_piece_in_order_is_found() -> None:
    ones = np.ones((4, 4))
    ones[1:3] = WHOLE[:2, :4]
    assert locate(WHOLE[:2, :4], ones) is not None
    assert locate(np.ascontiguousarray(WHOLE[:2, :4].T), ones) is not None
    assert locate(np.ascontiguousarray(WHOLE[:2, 3::-1]), ones) is None


def test_a_transposed_piece_is_found_although_numbers_in_the_whole_are_alike() -> None:
    whole = np.round(np.random.default_rng(0).normal(size=(3, 4, 5)), 1)
    part = np.ascontiguousarray(whole[1].T)
    places = locate(part, whole)
    assert places is not None and np.array_equal(whole.reshape(-1)[places], part.reshape(-1))


@pytest.mark.parametrize("is_turned", [False, True])
def test_rows_in_another_order_are_found_although_their_numbers_repeat(is_turned: bool) -> None:
    whole = np.round(np.random.default_rng(0).normal(size=(24, 8)), 1)
    part = whole[[0, 4, 1, 5, 2, 6, 3, 7]]
    whole, part = (np.ascontiguousarray(array.T if is_turned else array) for array in (whole, part))
    places = locate(part, whole)
    assert places is not None and np.array_equal(whole.reshape(-1)[places], part.reshape(-1))


def test_rows_of_which_two_are_alike_are_no_piece_in_another_order() -> None:
    whole = np.round(WHOLE, 1)[[0, 1, 2, 3, 0]]
    assert locate(whole[[3, 0, 2]], whole) is None


def test_a_few_numbers_are_found_in_the_gap_that_other_pieces_leave() -> None:
    joined = np.concatenate([WHOLE[0], [0.25, 0.5], WHOLE[1], [0.75]])
    parts = [make_leaf(array) for array in (np.array([0.75]), WHOLE[0], np.array([0.25, 0.5]), WHOLE[1])]
    places = {tuple(piece.part.array): piece.places.tolist() for piece in find_pieces(parts, [make_leaf(joined)])}
    assert places[0.75,] == [18] and places[0.25, 0.5] == [8, 9]


def test_a_few_numbers_alone_are_no_piece_and_neither_are_those_that_fit_two_gaps() -> None:
    assert locate(WHOLE[0, :2], WHOLE) is None
    joined = np.concatenate([[0.5], WHOLE[0], [0.5]])
    assert len(list(find_pieces([make_leaf(WHOLE[0]), make_leaf(np.array([0.5]))], [make_leaf(joined)]))) == 1


def test_biases_of_single_outputs_are_found_in_that_of_all() -> None:
    numbers = WHOLE[0, :3]
    parts = [TrueValue(number, numbers[number : number + 1], "float32", None, "") for number in (2, 0, 1)]
    whole = TrueValue(9, numbers, "float32", None, "")
    found = {piece.part.number: piece.places.tolist() for piece in find_pieces(parts, [whole])}
    assert found == {2: [2], 0: [0], 1: [1]}
    assert list(find_pieces(parts[:2], [whole])) == []
    assert list(find_pieces(parts, [TrueValue(9, np.zeros(3), "float32", None, "")])) == []


def find_overlaps(references: list[Array], candidates: list[Array]) -> set[tuple[int, int]]:
    numbers = iter(range(100))
    ours, theirs = ([make_leaf(one, next(numbers)) for one in arrays] for arrays in (references, candidates))
    found = set()
    for one in pair_overlaps(ours, theirs, {}):
        taken = one.reference.array.reshape(-1)[one.places[0]]
        assert np.array_equal(taken, one.candidate.array.reshape(-1)[one.places[1]])
        found.add((one.reference.number, one.candidate.number - len(references)))
    return found


def test_weights_that_each_run_has_cut_up_in_its_own_way_are_found_row_by_row() -> None:
    """Query, key and value in one run; in the other two parts, each with half of all three."""
    three = [np.random.default_rng(seed).standard_normal((4, 6)) for seed in range(3)]
    halves = [np.concatenate([one[part] for one in three]) for part in (slice(0, 2), slice(2, 4))]
    everything = {(one, half) for one in range(3) for half in range(2)}
    assert find_overlaps(three, halves) == everything
    assert find_overlaps(three, [half.T.copy() for half in halves]) == everything
    assert find_overlaps(halves, three) == {(half, one) for one, half in everything}


def test_biases_that_each_run_has_cut_up_in_its_own_way_are_found_number_by_number() -> None:
    three = [np.random.default_rng(seed).standard_normal(8) for seed in range(3)]
    halves = [np.concatenate([one[part] for one in three]) for part in (slice(0, 4), slice(4, 8))]
    assert len(find_overlaps(three, halves)) == 6


def test_weights_without_numbers_are_no_parts_of_others() -> None:
    assert find_overlaps([np.zeros((0, 4)), WHOLE], [np.zeros((3, 0)), np.zeros(0), np.zeros(())]) == set()


def test_weights_of_which_something_is_nowhere_else_are_no_parts_of_others() -> None:
    three = [np.random.default_rng(seed).standard_normal((4, 6)) for seed in range(3)]
    halves = [np.concatenate([one[part] for one in three]) for part in (slice(0, 2), slice(2, 4))]
    halves[1][0] += 1
    assert find_overlaps(three, halves) == set()


def test_of_two_copies_a_piece_belongs_to_the_one_with_its_gradient() -> None:
    """A network, and another one that follows it and is not trained."""
    copies = [make_leaf(WHOLE, number) for number in range(2)]
    part = make_leaf(WHOLE[:2], 2)
    copies[1].gradient, part.gradient = WHOLE**2, WHOLE[:2] ** 2
    assert [piece.whole.number for piece in find_pieces([part], copies)] == [1]
    part.gradient = None
    assert [piece.whole.number for piece in find_pieces([part], copies)] == [0]
