"""Faults planted in models of MindSpore: the corpus is itself right, bit for bit, and compare names some of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tensorprobe
from tests.mindspore_runtime import settle_mindspore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
settle_mindspore()
sys.path.insert(0, str(BENCHMARKS))
try:
    from fault.case import UNFAULTED, Case, Setting, draw_fault, survey_model
    from fault.check import find_first_differences, find_objection, measure_noise
    from fault.dump import Dump, read_dump
    from fault.framework import framework_of
    from fault.record import record_candidate, record_reference
    from fault.score import judge_faulted, judge_unfaulted, saying_of
    from fault.truth import Truth, find_truth

    framework_of("mindspore")
finally:
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that a reference is recorded once."""
    return tmp_path_factory.mktemp("corpus")


def make_case(model: str, kind: str, level: str, task: str = "tensor", noise: str = "") -> Case:
    return Case(model, kind, 0, Setting(level, task, framework="mindspore"), noise)


def record(case: Case, folder: Path) -> tuple[Dump, Dump, Truth]:
    reference = read_dump(record_reference(case, folder))
    path, changed = record_candidate(case, folder)
    candidate = read_dump(path)
    return reference, candidate, find_truth(case, reference, candidate, changed)


@pytest.mark.parametrize(
    ("model", "kind", "level"),
    [
        ("lstm", "operand", "L1"),  # one of seven calls of a cell
        ("lstm", "gradient_hook", "L1"),  # nothing in the forward
        ("cnn", "epsilon", "L0"),
        ("gpt", "untied", "mix"),
        pytest.param("lstm", "nan", "L1", marks=pytest.mark.long),  # an inserted call
        pytest.param("lstm", "residual", "L1", marks=pytest.mark.long),  # a removed call
        pytest.param("lstm", "data", "L1", marks=pytest.mark.long),
        pytest.param("cnn", "stale", "L1", marks=pytest.mark.long),  # shows in a later call
        pytest.param("cnn", "start", "L0", marks=pytest.mark.long),
        pytest.param("gpt", "seed", "mix", marks=pytest.mark.long),
    ],
)
@pytest.mark.some(2)
def test_two_runs_part_at_the_planted_fault_and_compare_names_it(
    folder: Path, model: str, kind: str, level: str
) -> None:
    case = make_case(model, kind, level)
    reference, candidate, truth = record(case, folder)

    assert find_objection(truth, reference, candidate) is None
    said = saying_of(tensorprobe.compare(reference.folder, candidate.folder))
    assert judge_faulted(said, truth, reference, candidate) == ("exact", 0), said


@pytest.mark.parametrize("noise", ["", pytest.param("split", marks=pytest.mark.long), "split_linear"])
def test_pairs_without_a_fault_are_silent(folder: Path, noise: str) -> None:
    case = make_case("lstm", UNFAULTED, "L1", noise=noise)
    reference, candidate = read_dump(record_reference(case, folder)), read_dump(record_candidate(case, folder)[0])

    if noise == "split":
        assert 0 < measure_noise(reference, candidate) < 1e-4
    elif not noise:
        assert find_first_differences(reference, candidate) == []
    assert judge_unfaulted(saying_of(tensorprobe.compare(reference.folder, candidate.folder))) == "silent"


def test_a_seed_always_draws_the_same_place_and_seeds_draw_many() -> None:
    setting = Setting("L1", "tensor", framework="mindspore")
    cases = [Case("lstm", "precision", seed, setting) for seed in range(20)]

    assert [draw_fault(case) for case in cases] == [draw_fault(case) for case in cases]
    assert len({draw_fault(case) for case in cases}) > 10


def test_there_are_many_kinds_in_these_models() -> None:
    planted = {kind for model in ("gpt", "cnn", "lstm") for kind in survey_model(model, "mindspore").places}

    assert len(planted) >= 25
