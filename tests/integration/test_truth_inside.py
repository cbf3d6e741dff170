"""One run calls a function at once, the other writes it out, and one of them has a mistake: which call is named?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe.compare.result import Comparison
from tests.integration.fused_case import CASES, Case, Program, Weights


def record(folder: Path, program: Program, dtype: torch.dtype) -> Path:
    model = Weights().to(dtype)
    model.program = program
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        model(x).backward()
    return folder


def compare(tmp_path: Path, case: Case, fault: str) -> Comparison:
    right, wrong = (case.written, case.fused) if case.is_fused_wrong else (case.fused, case.written)
    reference = record(tmp_path / "reference", right, case.dtype)
    candidate = record(tmp_path / "candidate", partial(wrong, fault=fault) if fault else wrong, case.dtype)
    return tensorprobe.compare(reference, candidate, by="truth")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_call_with_the_mistake_is_named_with_what_it_stands_against_inside_the_other(
    case: Case, tmp_path: Path
) -> None:
    result = compare(tmp_path, case, case.fault)
    call = result.verdict.call
    assert call is not None, result.verdict.headline
    written, fused = (call.reference, call.candidate) if case.is_fused_wrong else (call.candidate, call.reference)
    print(result.verdict.headline, *result.verdict.evidence, sep="\n")
    assert written[-1].op.strip("_") in case.words.split(), result.verdict.headline
    assert f"inside {fused[-1].name}" in result.verdict.headline
    assert written[-1].name != fused[-1].name
