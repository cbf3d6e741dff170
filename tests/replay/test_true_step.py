"""A step as plain data: what is computed from what, and what is a result of it?"""

from __future__ import annotations

import numpy as np

from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue


def make_step(*calls: TrueCall, makers: tuple[str | None, ...]) -> TrueStep:
    values = [TrueValue(number, np.ones(3), "float32", maker, "output.0") for number, maker in enumerate(makers)]
    return TrueStep("step0", {call.name: call for call in calls}, values, Coverage())


def make_call(name: str, position: int, given: list[int], made: list[int], *, is_undefined: bool = False) -> TrueCall:
    places = [
        {f"{role}.{number}": value for number, value in enumerate(values)}
        for role, values in (("input", given), ("output", made))
    ]
    return TrueCall(name, position, "pytorch", "Torch", name, None, None, *places, is_undefined=is_undefined)


def test_what_a_call_passes_on_as_it_is_is_not_computed_from_itself() -> None:
    """A dropout that is off gives back the tensor that it is given."""
    step = make_step(make_call("linear", 0, [0], [1]), make_call("dropout", 1, [1], [1]), makers=(None, "linear"))
    assert step.find_before({1}) == {0}
    assert step.is_end(step.values[1])


def test_what_is_computed_of_a_view_that_no_call_took_is_computed_of_what_the_view_shows() -> None:
    """`x.T`, `x.real`."""
    step = make_step(
        make_call("linear", 0, [0], [1]), make_call("square", 1, [2], [3]), makers=(None, "linear", "linear", "square")
    )
    assert step.find_before({3}) == {0, 2}


def test_memory_that_is_yet_to_be_written_to_is_no_result() -> None:
    step = make_step(make_call("new_empty", 0, [0], [1], is_undefined=True), makers=(None, "new_empty"))
    assert not step.is_end(step.values[1])


def test_what_is_written_into_a_part_is_no_result_if_the_whole_is_taken() -> None:
    """The whole has no call of its own that made it: it shows what `copy_` has written."""
    written = make_call("copy_", 0, [0], [1])
    assert make_step(written, makers=(None, "copy_", "copy_")).is_end(
        TrueValue(1, np.ones(3), "float32", "copy_", "output.0")
    )
    step = make_step(written, make_call("matmul", 1, [2], [3]), makers=(None, "copy_", "copy_", "matmul"))
    assert not step.is_end(step.values[1])
    assert step.is_end(step.values[3])


def test_numbers_beside_a_choice_are_no_result_if_the_choice_is_taken() -> None:
    """`topk(scores)[1]`: in which order it gives the best scores is nobody's concern."""
    topk, gather = make_call("topk", 0, [0], [1, 2]), make_call("gather", 1, [0, 2], [3])
    makers = (None, "topk", "topk", "gather")
    step, trained = (make_step(topk, gather, makers=makers) for _ in range(2))
    alone = make_step(topk, makers=makers[:3])
    for one in (step, trained, alone):
        one.values[2].array = np.arange(3)
        one.values[2].dtype = "int64"
    trained.values[3].is_root = True
    assert step.is_end(step.values[1])  # without a loss all that comes out is a result
    assert not trained.is_end(trained.values[1])
    assert alone.is_end(alone.values[1])
