"""Two steps agree if their loss and their gradients do, however they are written; and only then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorprobe.compare.judge.step_result import Agreement, add_losses, find_agreement, find_lone_ends, find_losses
from tensorprobe.run.step import Run
from tests.compare.judge.sketched_recording import Parameter, SketchedRecording
from tests.compare.judge.small_step import RIGHT, Fault, W, X, by_columns, by_rows

FAULTS = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(loss=1.001), id="loss"),
        pytest.param(Fault(last_weight_back=1.001), id="last gradient"),
        pytest.param(Fault(tanh_back=1.001), id="first gradients"),
        pytest.param(Fault(tanh_back=0.999), id="first gradients, less"),
        pytest.param(Fault(is_cut=True), id="no gradient"),
        pytest.param(Fault(end=1.001), id="an end that nobody takes"),
        pytest.param(Fault(tanh=1.01), id="forward"),
    ],
)


def agree(tmp_path: Path, fault: Fault = RIGHT, of_reference: Fault = RIGHT, **how: int) -> Agreement | None:
    reference = by_rows(tmp_path / "reference", of_reference)
    return find_agreement(reference, by_columns(tmp_path / "candidate", fault, **how))


def test_the_same_results_in_another_layout_and_order_agree(tmp_path: Path) -> None:
    found = agree(tmp_path)
    assert found is not None
    assert (found.gradients.count, found.gradients.unknown) == (3, 0)
    assert max(found.loss_error, found.gradients.error) < 1e-6


def test_a_gradient_in_pieces_is_said_to_be_unknown(tmp_path: Path) -> None:
    found = agree(tmp_path, pieces=2)
    assert found is not None
    assert (found.gradients.count, found.gradients.unknown) == (2, 1)


@pytest.mark.parametrize("parts", [2, 3])
def test_a_batch_in_parts_agrees_with_the_whole(tmp_path: Path, parts: int) -> None:
    found = agree(tmp_path, parts=parts)
    assert found is not None
    assert found.gradients.count >= 2


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_losses_of_parts_add_up(tmp_path: Path, parts: int) -> None:
    whole = add_losses(by_rows(tmp_path / "whole"))
    assert whole is not None
    assert add_losses(by_columns(tmp_path / "parts", parts=parts)) == pytest.approx(whole, rel=1e-6)


@FAULTS
def test_a_result_that_differs_is_no_agreement(tmp_path: Path, fault: Fault) -> None:
    assert agree(tmp_path, fault) is None


@FAULTS
def test_it_is_none_either_where_it_is_the_reference_that_differs(tmp_path: Path, fault: Fault) -> None:
    assert agree(tmp_path, of_reference=fault) is None


@FAULTS
def test_a_result_that_differs_is_seen_in_parts_of_the_batch(tmp_path: Path, fault: Fault) -> None:
    assert agree(tmp_path, fault, parts=2) is None


@FAULTS
def test_what_is_wrong_in_both_alike_agrees(tmp_path: Path, fault: Fault) -> None:
    assert agree(tmp_path, fault, fault) is not None


def test_less_is_allowed_where_there_is_another_reason_to_think_that_they_differ(tmp_path: Path) -> None:
    reference = by_rows(tmp_path / "reference")
    candidate = by_columns(tmp_path / "candidate", Fault(loss=1 + 1e-5))
    assert find_agreement(reference, candidate) is not None
    assert find_agreement(reference, candidate, is_strict=True) is None


def test_the_end_that_differs_is_named_in_both_runs(tmp_path: Path) -> None:
    runs = by_rows(tmp_path / "reference"), by_columns(tmp_path / "candidate", Fault(end=1.01))
    ends = [{call.name for call in run.calls if call.op == "sigmoid"} for run in runs]
    assert list(find_lone_ends(*runs)) == ends


def clip_and_update(folder: Path, is_written_out: bool) -> Run:
    """Clipping makes single numbers, of which none is a loss; and an update is written out in one run alone."""
    run = SketchedRecording()
    x, w = run.data(X), run.parameter("first.weight", W)
    z = run.api("Functional.linear", x, w, output=X @ W.T)
    run.api("Torch.mean", z, output=z.array.mean())
    g = run.backward("Torch.mean.0", run.data(np.float32(1)), np.full_like(z.array, 1 / z.array.size))
    _, g = run.backward("Functional.linear.0", g, [None, g.array.T @ X])
    norm = run.api("Torch.norm", g, output=np.float32(np.linalg.norm(g.array)))
    run.api("Torch.div", g, norm, output=g.array / norm.array)
    updated = Parameter(W * np.float32(1.5 if is_written_out else 1.25), None, True, "first.weight")
    run.api("Tensor.add_", w, output=updated)
    return run.read(folder)


def test_what_clipping_makes_is_no_loss_and_what_an_update_leaves_no_result(tmp_path: Path) -> None:
    runs = clip_and_update(tmp_path / "r", True), clip_and_update(tmp_path / "c", False)
    assert [call.op for call, _ in find_losses(runs[0])] == ["mean"]
    assert add_losses(runs[0]) == add_losses(runs[1])
    assert find_lone_ends(*runs) == (set(), set())
