"""Two programs that have nothing to do with each other get no verdict; whatever else is odd about two runs, they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tensorprobe
from tensorprobe.compare.result import Comparison
from tests.compare.recording import Recording

OPS = ("exp", "tanh", "sigmoid", "cumsum", "erf", "sqrt", "sin", "cos")
OTHERS = ("argsort", "logdet", "triu", "kron", "fft_fft", "unique", "trace", "cummax")


def chain(ops: tuple[str, ...], width: int = 4, seed: int = 0) -> Recording:
    """A linear, and these one after another."""
    run = Recording()
    rng = np.random.default_rng(seed)
    x = run.data(rng.standard_normal((3, width)).astype(np.float32))
    w = run.data(rng.standard_normal((width, width)).astype(np.float32), True)
    x = run.api("Functional.linear", x, w, output=x.array @ w.array.T)
    for op in ops:
        x = run.api(f"Torch.{op}", x, output=x.array * np.float32(1.25) + np.float32(len(op)))
    return run


def compared(tmp_path: Path, reference: Recording, candidate: Recording) -> Comparison:
    return tensorprobe.compare(reference.write(tmp_path / "r"), candidate.write(tmp_path / "c"))


def test_two_programs_are_said_to_be_two_with_the_figures_and_what_to_do(tmp_path: Path) -> None:
    result = compared(tmp_path, chain(OPS, 4), chain(OTHERS, 6))
    assert result.verdict.kind == "unrelated" and not result
    assert result.verdict.headline == (
        "These do not look like the same program: 1 of 9 calls of the reference and 1 of 9 of the candidate have a "
        "partner, and 0 of 19 and 19 tensors can be compared."
    )
    evidence = "\n".join(result.verdict.evidence)
    assert "the two folders" in evidence and "--mapping" in evidence
    assert "compared anyway: The runs started from different values" in evidence
    assert result.verdict.call is None


def test_not_even_where_the_little_that_can_be_compared_agrees(tmp_path: Path) -> None:
    same = chain((), 4)
    reference, candidate = chain(OPS, 4, seed=1), chain(OTHERS, 6, seed=2)
    for run in (reference, candidate):
        run.records["Functional.linear.0.forward"] = same.records["Functional.linear.0.forward"]
        run.files |= same.files
    assert compared(tmp_path, reference, candidate).verdict.kind == "unrelated"


def test_another_width_is_a_difference_of_one_program(tmp_path: Path) -> None:
    assert compared(tmp_path, chain(OPS, 4), chain(OPS, 6)).verdict.kind == "unequal start"


def test_other_weights_are_a_difference_of_one_program(tmp_path: Path) -> None:
    assert compared(tmp_path, chain(OPS, seed=1), chain(OPS, seed=2)).verdict.kind == "unequal start"


def test_a_run_that_ended_after_its_first_calls_is_one_program(tmp_path: Path) -> None:
    candidate = chain(OPS[:1])
    candidate.run["complete"] = False
    assert compared(tmp_path, chain(OPS), candidate).verdict.kind == "agree"


def test_a_program_that_goes_another_way_half_through_is_one_program(tmp_path: Path) -> None:
    result = compared(tmp_path, chain((*OPS[:3], *OPS[3:])), chain((*OPS[:3], *OTHERS[3:])))
    assert result.verdict.kind != "unrelated"
