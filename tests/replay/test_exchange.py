"""What comes out of a collective, by what all ranks put in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorprobe.replay.communication import Communication, read_communication
from tensorprobe.replay.exchange import exchange
from tensorprobe.replay.invocation import NotReplayedError
from tensorprobe.replay.program import Operation
from tensorprobe.run.call import name_call


def leaf(*shape: int) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape)}


def make_call(kind: str, given: list[Any], **told: Any) -> Communication:
    """A recorded collective; its first argument is written, its last one read."""
    flow = {"reads": [f"input.{len(given) - 1}"], "writes": ["input.0"]}
    group = {"name": "0", "ranks": [0, 1]}
    fields = {
        "input_args": given,
        "output": given,
        "collective": {"kind": kind, "group": group, "number": 0, "started": 0, **flow, **told},
    }
    call = read_communication(Operation(name_call(f"Distributed.{kind}.0.forward"), fields))
    assert call is not None
    return call


def tensors(*rows: list[float]) -> list[torch.Tensor]:
    return [torch.tensor(row) for row in rows]


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", [4.0, 6.0]), ("avg", [2.0, 3.0]), ("max", [3.0, 4.0]), ("product", [3.0, 8.0])]
)
def test_a_reduction_is_what_its_name_says(op: str, expected: list[float]) -> None:
    results = exchange([make_call("all_reduce", [leaf(2)], op=op)] * 2, [tensors([1.0, 2.0]), tensors([3.0, 4.0])])
    assert [[tensor.tolist() for tensor in result or ()] for result in results] == [[expected], [expected]]


def test_a_reduction_that_is_not_known_is_refused_with_its_name() -> None:
    with pytest.raises(NotReplayedError, match="the reduction 'bxor' is not known here"):
        exchange([make_call("all_reduce", [leaf(1)], op="bxor")] * 2, [tensors([1.0]), tensors([1.0])])


def test_all_to_all_goes_by_the_sizes_that_were_given() -> None:
    calls = [
        make_call("all_to_all", [leaf(3), leaf(3)], input_splits=[2, 1]),
        make_call("all_to_all", [leaf(2), leaf(2)], input_splits=[1, 1]),
    ]
    first, second = exchange(calls, [tensors([1.0, 2.0, 3.0]), tensors([4.0, 5.0])])
    assert first is not None and first[0].tolist() == [1.0, 2.0, 4.0]
    assert second is not None and second[0].tolist() == [3.0, 5.0]


def test_pieces_may_come_in_a_list() -> None:
    calls = [make_call("reduce_scatter", [leaf(1), [leaf(1), leaf(1)]])] * 2
    results = exchange(calls, [tensors([1.0], [2.0]), tensors([3.0], [4.0])])
    assert [result[0].tolist() for result in results if result] == [[4.0], [6.0]]


def test_who_is_not_the_root_of_a_reduction_has_nothing_that_means_something() -> None:
    calls = [make_call("reduce", [leaf(1)], root=1)] * 2
    first, second = exchange(calls, [tensors([1.0]), tensors([2.0])])
    assert first is None and second is not None and second[0].tolist() == [3.0]


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NotReplayedError, match="the ranks give 4 elements where 2 were recorded"):
        exchange([make_call("all_gather", [leaf(2), leaf(2)])] * 2, [tensors([1.0, 2.0]), tensors([3.0, 4.0])])
