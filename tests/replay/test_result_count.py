"""What is counted of a call's results before it is made is what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorprobe.capture.torch.function import find_function
from tensorprobe.replay.allocation import iter_tensors
from tensorprobe.replay.result_count import ResultCount, count_results

ONES = torch.ones
PLACES = torch.zeros(4, 7, dtype=torch.long)
CALLS: list[tuple[Any, ...]] = [
    ("Torch", "cat", [ONES(2, 3), ONES(4, 3)]),
    ("Functional", "linear", ONES(5, 2, 3), ONES(4, 3)),
    ("Functional", "embedding", PLACES, ONES(5, 6)),
    ("Torch", "embedding", ONES(5, 6), PLACES),
    ("Torch", "matmul", ONES(3), ONES(3)),
    ("Torch", "matmul", ONES(4, 3), ONES(3)),
    ("Torch", "matmul", ONES(3), ONES(5, 3, 4)),
    ("Tensor", "matmul", ONES(5, 1, 4, 3), ONES(2, 3, 6)),
    ("Torch", "bmm", ONES(5, 4, 3), ONES(5, 3, 6)),
    ("Functional", "conv1d", ONES(2, 4, 19), ONES(6, 2, 3), None, 2, 1, 3, 2),
    ("Functional", "conv2d", ONES(4, 9, 8), ONES(6, 4, 3, 2), None, (1, 2), (1, 0)),
    ("Functional", "conv2d", ONES(2, 4, 9, 8), ONES(6, 4, 3, 2), ONES(6), [2], [1]),
    ("Functional", "conv3d", ONES(1, 1, 4, 5, 6), ONES(1, 1, 2, 2, 2)),
    ("Functional", "unfold", ONES(2, 3, 9, 8), (3, 2), 1, 1, 2),
    ("Functional", "unfold", ONES(3, 9, 8), 2, 2),
    ("Functional", "one_hot", PLACES),
    ("Functional", "one_hot", PLACES, 5),
    ("Torch", "diff", ONES(3, 4)),
    ("Torch", "outer", ONES(3), ONES(4)),
    ("Torch", "polar", ONES(3, 1), ONES(4)),
    ("Tensor", "argsort", ONES(3, 4)),
    ("Torch", "einsum", "bij,bjk->bik", ONES(2, 3, 4), ONES(2, 4, 5)),
    ("Torch", "einsum", "ij, kl -> k", ONES(3, 4), ONES(5, 1)),
    ("Tensor", "__getitem__", ONES(5, 4), 2),
    ("Tensor", "__getitem__", ONES(5, 4), (slice(None), None, slice(3, 0, 1))),
    ("Tensor", "__getitem__", ONES(5, 4, 3), (Ellipsis, slice(-2, None))),
    ("Tensor", "__getitem__", ONES(5, 4, 3), (PLACES, slice(None, None, 2))),
    ("Tensor", "__getitem__", ONES(5, 4, 3), (PLACES, slice(0, 2), PLACES[0])),
    ("Tensor", "__getitem__", ONES(5, 4, 3), (torch.eye(5, 4) > 0, None)),
    ("Tensor", "__getitem__", ONES(5, 4), (Ellipsis, torch.tensor(2))),
    ("Tensor", "repeat", ONES(2, 3), 4, 1, 2),
    ("Tensor", "repeat", ONES(2, 3), (2, 2)),
    ("Torch", "arange", 7),
    ("Torch", "arange", 2.5),
    ("Torch", "arange", 2, 9),
    ("Torch", "arange", 9, 2, -3),
    ("Torch", "arange", 0, 1, 0.1),
]


@pytest.mark.parametrize("call", CALLS)
def test_as_many_elements_are_counted_as_a_call_gives(call: tuple[Any, ...]) -> None:
    prefix, op, *args = call
    found = count_results(op, list(iter_tensors(args)), args, {})
    assert found is not None
    assert found.made == find_function(prefix, op)(*args).numel()


def test_arguments_that_are_given_by_their_names_count_too() -> None:
    assert count_results("arange", [], [], {"start": 2, "end": 9}) == ResultCount(7)
    found = count_results("diff", [], [ONES(3, 4)], {"dim": 0, "append": ONES(2, 4)})
    assert found is not None
    assert found.made == torch.diff(ONES(3, 4), dim=0, append=ONES(2, 4)).numel()


def test_what_is_repeated_for_a_batch_is_counted_too() -> None:
    args = ONES(5, 4, 3), ONES(3, 6)
    assert count_results("matmul", args, args, {}) == ResultCount(5 * 4 * 6, 5 * 3 * (4 + 6))


def test_what_an_index_writes_to_is_no_result() -> None:
    args = ONES(5, 4, 3), (PLACES, slice(0, 2)), 1.0
    assert count_results("__setitem__", args[:1], args, {}) == ResultCount(0, 4 * 7 * 2 * 3)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("kron", [ONES(2), ONES(2)], {}),
        ("matmul", [ONES(2, 3, 4), ONES(5, 4, 3)], {}),
        ("conv1d", [ONES(1, 2, 9), ONES(3, 2, 3), None, 1, "same"], {}),
        ("conv1d", [ONES(1, 2, 9), ONES(3, 2, 3), None, 0], {}),
        ("einsum", ["ii->i", ONES(2, 2)], {}),
        ("einsum", ["...i,i->...", ONES(3, 2), ONES(2)], {}),
        ("__getitem__", [ONES(5, 4), ([0, 1], True)], {}),
        ("__getitem__", [ONES(5), (0, slice(1))], {}),
        ("arange", [0], {"end": 5}),
        ("diff", [ONES(5), 2], {}),
        ("arange", [0, 5, 0], {}),
        ("arange", [float("inf")], {}),
        ("linear", [ONES(3)], {}),
    ],
)
def test_what_is_not_known_here_is_not_counted(op: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert count_results(op, list(iter_tensors(args)), args, kwargs) is None
