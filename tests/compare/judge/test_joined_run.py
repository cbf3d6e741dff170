"""A batch that is taken in parts, each with a backward of its own, is seen as the whole batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorprobe.compare.judge.joined_run import join_parts
from tensorprobe.compare.measure.statistic_measure import with_statistics_of
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot
from tests.compare.judge.sketched_recording import Array, SketchedRecording
from tests.compare.recording import Traced
from tests.compare.tensor_slot import make_slot

RNG = np.random.default_rng(0)
W = RNG.standard_normal((5, 4)).astype(np.float32)
PARTS = [RNG.standard_normal((rows, 4)).astype(np.float32) for rows in (3, 3, 2)]
LINEAR, TANH, MEAN = "Functional.linear.0.forward", "Torch.tanh.0.forward", "Tensor.mean.0.forward"


def take(run: SketchedRecording, x: Array, activation: str = "Torch.tanh") -> Traced:
    """One part, up to its loss."""
    y = run.api("Functional.linear", run.data(x), run.parameter("weight", W), output=x @ W.T)
    h = run.api(activation, y, output=np.tanh(y.array))
    loss: Traced = run.api("Tensor.mean", h, output=h.array.mean())
    return loss


def take_and_train(run: SketchedRecording, x: Array, activation: str = "Torch.tanh") -> None:
    part = len(run.run["backward_passes"])
    run.ask(take(run, x, activation))
    run.backward(f"Functional.linear.{part}", run.data(x @ W.T), [x, W])


def in_parts(folder: Path, has_sketches: bool = True) -> Run:
    run = SketchedRecording(has_sketches)
    for x in PARTS:
        take_and_train(run, x)
    return run.read(folder)


def slot_of(run: Run, call: str, slot: str) -> TensorSlot:
    return next(one for one in run.by_name[call].tensors if one.slot == slot)


def statistics(slot: TensorSlot) -> tuple[object, ...]:
    return slot.element_count, slot.max, slot.min, slot.mean, slot.norm


def assert_whole(run: Run) -> None:
    whole = np.concatenate(PARTS)
    expected = {(LINEAR, "input.0"): whole, (LINEAR, "output.0"): whole @ W.T, (TANH, "output.0"): np.tanh(whole @ W.T)}
    for place, array in expected.items():
        of_whole = with_statistics_of(make_slot(shape=array.shape), array)
        assert statistics(slot_of(run, *place)) == pytest.approx(statistics(of_whole), rel=1e-6)


def test_what_is_computed_of_all_parts_is_what_is_computed_of_the_whole_batch(tmp_path: Path) -> None:
    joined = join_parts(in_parts(tmp_path))
    assert [call.name for call in joined.calls if call.direction == "forward"] == [LINEAR, TANH, MEAN]
    assert_whole(joined)


def test_parts_are_joined_also_in_a_dump_without_sketches(tmp_path: Path) -> None:
    assert_whole(join_parts(in_parts(tmp_path, has_sketches=False)))


def test_a_weight_that_all_parts_take_stays_as_it_is(tmp_path: Path) -> None:
    run = in_parts(tmp_path)
    assert slot_of(join_parts(run), LINEAR, "input.1") == slot_of(run, LINEAR, "input.1")


def test_the_backward_of_each_part_stays(tmp_path: Path) -> None:
    run = in_parts(tmp_path)
    backward = [[call for call in one.calls if call.direction == "backward"] for one in (run, join_parts(run))]
    assert len(backward[0]) == len(PARTS) and backward[0] == backward[1]


def test_the_run_that_is_joined_is_not_changed(tmp_path: Path) -> None:
    run = in_parts(tmp_path)
    before = [(call.name, call.slots) for call in run.calls]
    join_parts(run)
    assert [(call.name, call.slots) for call in run.calls] == before


def test_a_run_with_one_backward_is_returned_as_it_is(tmp_path: Path) -> None:
    run = SketchedRecording()
    take_and_train(run, PARTS[0])
    take(run, PARTS[1])
    step = run.read(tmp_path)
    assert join_parts(step) is step


def test_a_gradient_that_is_only_asked_for_makes_no_part(tmp_path: Path) -> None:
    run = SketchedRecording()
    run.ask(take(run, PARTS[0]), accumulates=False)
    run.ask(take(run, PARTS[1]))
    step = run.read(tmp_path)
    assert join_parts(step) is step


def test_parts_that_end_in_other_calls_are_left(tmp_path: Path) -> None:
    run = SketchedRecording()
    take_and_train(run, PARTS[0])
    x = run.data(PARTS[1])
    run.ask(run.api("Tensor.sum", x, output=x.array.sum()))
    step = run.read(tmp_path)
    assert join_parts(step).calls == step.calls


def test_only_what_all_parts_do_the_same_is_joined(tmp_path: Path) -> None:
    run = SketchedRecording()
    take_and_train(run, PARTS[0])
    take_and_train(run, PARTS[1], "Torch.sigmoid")
    joined = join_parts(run.read(tmp_path)).by_name
    assert {LINEAR, "Functional.linear.1.forward", TANH, "Torch.sigmoid.0.forward", MEAN} <= set(joined)
    assert "Tensor.mean.1.forward" not in joined


def test_what_the_first_part_alone_does_before_the_others_begin_is_left(tmp_path: Path) -> None:
    run = SketchedRecording()
    run.api("Torch.arange", 4, output=np.arange(4.0))
    for x in PARTS:
        take_and_train(run, x)
    joined = join_parts(run.read(tmp_path))
    assert slot_of(joined, "Torch.arange.0.forward", "output.0").shape == (4,)
    assert_whole(joined)
