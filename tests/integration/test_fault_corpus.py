"""The corpus of planted faults is itself right, bit for bit and without compare: `faults.py --check`, briefly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from fault.case import UNFAULTED, Case, Setting, draw_fault, models_of, seeds_of, survey_model
    from fault.check import find_first_differences, find_objection, measure_noise
    from fault.dump import read_dump
    from fault.kind import KINDS
    from fault.record import record_candidate, record_reference
    from fault.truth import Truth, find_truth
finally:
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that a reference is recorded once."""
    return tmp_path_factory.mktemp("corpus")


@pytest.mark.parametrize(
    ("model", "kind", "level"),
    [
        ("lstm", "operand", "L1"),  # one of seven calls of a cell
        ("lstm", "nan", "L1"),  # an inserted call
        ("lstm", "residual", "L1"),  # a removed call
        ("lstm", "gradient_hook", "L1"),  # nothing in the forward
        ("lstm", "data", "L1"),
        ("cnn", "epsilon", "L0"),
        ("cnn", "stale", "L0"),  # shows in a later call
        ("cnn", "start", "L0"),
        ("gpt", "untied", "mix"),
        ("gpt", "seed", "mix"),
    ],
)
@pytest.mark.some(2)
def test_two_runs_part_at_the_place_of_the_planted_fault_and_not_before(
    folder: Path, model: str, kind: str, level: str
) -> None:
    case = Case(model, kind, 0, Setting(level, "tensor"))
    reference = read_dump(record_reference(case, folder))
    path, changed = record_candidate(case, folder)
    candidate = read_dump(path)

    truth = find_truth(case, reference, candidate, changed)

    assert find_objection(truth, reference, candidate) is None
    assert truth.reference <= set(reference.records) and truth.candidate <= set(candidate.records)


def test_the_check_objects_to_a_truth_that_names_another_call(folder: Path) -> None:
    case = Case("lstm", "operand", 0, Setting("L1", "tensor"))
    reference = read_dump(record_reference(case, folder))
    candidate = read_dump(record_candidate(case, folder)[0])
    wrong = Truth(frozenset({"Functional.embedding.0.forward"}), frozenset(), frozenset({"source"}))

    assert "the runs part at" in str(find_objection(wrong, reference, candidate))
    assert find_objection(wrong, reference, reference) == "nothing differs"


def test_the_same_run_twice_has_the_same_bits(folder: Path) -> None:
    case = Case("lstm", UNFAULTED, 0, Setting("L1", "tensor"))
    runs = read_dump(record_reference(case, folder)), read_dump(record_candidate(case, folder)[0])

    assert find_first_differences(*runs) == []


@pytest.mark.parametrize("noise", ["split", "wide"])
def test_other_kernels_change_the_last_bits_and_no_more(folder: Path, noise: str) -> None:
    case = Case("lstm", UNFAULTED, 0, Setting("L1", "tensor"), noise)
    reference = read_dump(record_reference(case, folder))
    candidate = read_dump(record_candidate(case, folder)[0])

    assert candidate.names == reference.names
    assert 0 < measure_noise(reference, candidate) < 1e-4


def test_a_seed_always_draws_the_same_place_and_seeds_draw_many() -> None:
    cases = [Case("gpt", "precision", seed, Setting("L1", "tensor")) for seed in range(20)]

    assert [draw_fault(case) for case in cases] == [draw_fault(case) for case in cases]
    assert len({draw_fault(case) for case in cases}) > 10


def test_there_are_many_kinds_in_the_models_that_tuning_sees() -> None:
    planted = {kind for model in ("gpt", "cnn", "lstm", "encoder_decoder") for kind in survey_model(model).places}

    assert planted == set(KINDS)
    assert len(planted) >= 15


def test_held_out_cases_are_never_those_of_tuning() -> None:
    cases = [
        {(model, seed) for model in models_of(split, is_unfaulted=True) for seed in seeds_of(split, 100)}
        for split in ("tuning", "held-out")
    ]

    assert not cases[0] & cases[1]
    assert {model for model, _ in cases[1]} - {model for model, _ in cases[0]}
