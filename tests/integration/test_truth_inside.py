"""One run calls a function at once, the other writes it out, and one of them has a mistake: which call is named?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.replay.inside import Inside
from tests.integration.fused_case import (
    CASES,
    Case,
    Program,
    Weights,
    fused_attention,
    fused_layer_norm,
    written_attention,
    written_layer_norm,
)


def record(folder: Path, program: Program, dtype: torch.dtype = torch.float32) -> Path:
    model = Weights().to(dtype)
    model.program = program
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        model(x).backward()
    return folder


def compare(tmp_path: Path, reference: Program, candidate: Program, dtype: torch.dtype = torch.float32) -> Comparison:
    return tensorprobe.compare(
        record(tmp_path / "reference", reference, dtype), record(tmp_path / "candidate", candidate, dtype), by="truth"
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.some(2)
def test_the_call_with_the_mistake_is_named_with_what_it_stands_against(case: Case, tmp_path: Path) -> None:
    right, wrong = (case.written, case.fused) if case.is_fused_wrong else (case.fused, case.written)
    result = compare(tmp_path, right, partial(wrong, fault=case.fault), case.dtype)

    call = result.verdict.call
    assert call is not None, result.verdict.headline
    written, fused = (call.reference, call.candidate) if case.is_fused_wrong else (call.candidate, call.reference)
    assert written[-1].op.strip("_") in case.words.split(), result.verdict.headline
    assert (f"inside {fused[-1].name}" in result.verdict.headline) == case.is_inside
    assert case.because in result.verdict.headline


@pytest.mark.parametrize(
    "pair", {case.fused: case.written for case in CASES}.items(), ids=lambda pair: pair[0].__name__
)
def test_what_is_called_at_once_and_what_is_written_out_rightly_agree(
    pair: tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]], tmp_path: Path
) -> None:
    result = compare(tmp_path, *pair)
    assert result.verdict.kind == "agree", result.verdict.headline


def test_both_lines_and_the_effect_are_said(tmp_path: Path) -> None:
    verdict = compare(tmp_path, fused_attention, partial(written_attention, fault="scale")).verdict
    evidence = "\n".join(verdict.evidence)

    assert verdict.headline == (
        "The runs first differ at Tensor.mul.0.forward of the candidate and bmm inside "
        "Functional.scaled_dot_product_attention.0.forward of the reference: "
        "its result is 0.5 times that of the reference."
    )
    assert "with the reference's value in its place, all of the loss difference disappears" in evidence
    assert "in fused_attention: " in evidence
    assert "in written_attention: scores = scores * " in evidence


def test_without_being_asked_for_truth_the_same_is_said(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference", fused_layer_norm)
    candidate = record(tmp_path / "candidate", partial(written_layer_norm, fault="epsilon"))
    assert "add inside Functional.layer_norm.0.forward" in tensorprobe.compare(reference, candidate).verdict.headline


def test_where_both_call_the_same_nothing_is_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    opens = Inside.open
    monkeypatch.setattr(Inside, "open", lambda self, step, name: opened.append(name) or opens(self, step, name))

    result = compare(tmp_path, fused_layer_norm, partial(fused_layer_norm, fault="epsilon"))
    assert "called with eps=0.001 where the reference had 1e-05" in result.verdict.headline
    assert opened == []


def test_only_calls_at_which_the_runs_part_are_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(model: Weights, x: torch.Tensor, *, is_fused: bool, fault: str = "") -> torch.Tensor:
        first = fused_attention(model, x) if is_fused else written_attention(model, x)
        return first + (fused_layer_norm if is_fused else partial(written_layer_norm, fault=fault))(model, x)

    opened: set[str] = set()
    opens = Inside.open
    monkeypatch.setattr(Inside, "open", lambda self, step, name: opened.add(name) or opens(self, step, name))

    result = compare(tmp_path, partial(twice, is_fused=True), partial(twice, is_fused=False, fault="epsilon"))
    assert "add inside Functional.layer_norm.0.forward" in result.verdict.headline
    assert "Functional.layer_norm.0.forward" in opened
    assert "Functional.scaled_dot_product_attention.0.forward" not in opened


# -- what cannot be taken apart ----------------------------------------------------------------------------------------


def fused_convolution(model: Weights, x: torch.Tensor) -> torch.Tensor:
    kernel = model.query.view(1, 8, 8)[:, :6, :3]
    return (F.conv1d(x.view(1, 6, 8), kernel, model.bias[:1]) @ model.out[:6]).square().mean()


def written_convolution(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    kernel = model.query.view(1, 8, 8)[:, :6, :3]
    windows = x.unfold(1, 3, 1)
    products = torch.einsum("cwk,ock->ow", windows, kernel.flip(2) if fault == "flip" else kernel)
    return ((products + model.bias[:1]).unsqueeze(0) @ model.out[:6]).square().mean()


def test_several_calls_against_one_that_cannot_be_taken_apart_are_named_by_their_first_and_last(tmp_path: Path) -> None:
    assert compare(tmp_path / "right", fused_convolution, written_convolution).verdict.kind == "agree"
    verdict = compare(tmp_path, fused_convolution, partial(written_convolution, fault="flip")).verdict

    assert verdict.headline == (
        "The runs first differ between Tensor.unfold.0.forward and Tensor.add.0.forward of the candidate, which "
        "correspond to Functional.conv1d.0.forward of the reference: the inputs are the same, but the results differ."
    )
    evidence = "\n".join(verdict.evidence)
    assert "candidate line, last call: " in evidence
    assert "the same in both runs: input.0, input.1, input.2 of Functional.conv1d.0.forward" in evidence


def test_several_calls_of_the_reference_stand_against_one_of_the_candidate(tmp_path: Path) -> None:
    verdict = compare(tmp_path, partial(written_convolution, fault="flip"), fused_convolution).verdict
    assert " of the reference, which correspond to Functional.conv1d.0.forward of the candidate" in verdict.headline
    assert "and Tensor.add.0.forward of the reference" in verdict.headline
