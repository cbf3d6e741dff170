"""The held-out pairs of networks are right by plain numbers, and each fault is what it says. No comparison is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.mindspore_runtime import settle_mindspore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
settle_mindspore()
sys.path.insert(0, str(BENCHMARKS))
try:
    from held_out.check import check_pair
    from held_out.fault import Fault, plant, remove_marks
    from held_out.pair import load_network
    from held_out.record import NETWORKS, PAIRS, Case, Recorder, Setting, find_pair_answer, list_cases, read_lines
finally:
    sys.path.remove(str(BENCHMARKS))

SHORT = ("graph", "memory", "scan")
"""The corpus changes seldom: all of it is checked in the long form."""


def faults_of(name: str) -> tuple[Fault, ...]:
    faults: tuple[Fault, ...] = load_network(name, "reference").FAULTS
    return faults


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in PAIRS]
)
@pytest.mark.some(2)
def test_both_networks_have_the_same_loss_and_gradients_and_each_fault_changes_what_it_says(name: str) -> None:
    assert list(check_pair(name)) == []


def test_there_are_twelve_pairs_or_more_with_four_faults_or_more_and_faults_of_all_kinds() -> None:
    faults = [fault for name in PAIRS for fault in faults_of(name)]

    assert len(PAIRS) >= 12
    assert all(len(faults_of(name)) >= 4 for name in PAIRS)
    assert any(fault.side == "reference" for fault in faults)
    assert any(fault.is_backward for fault in faults)
    assert any(not fault.has_effect for fault in faults)
    assert any(fault.first_step == 2 and fault.steps == 3 for fault in faults)
    assert any(fault.second is not None for fault in faults)
    assert any(fault.parameter for fault in faults)


@pytest.mark.parametrize("name", ["graph", "scan"])
def test_each_answer_has_a_line_at_which_a_call_is_recorded_and_no_mark_is_recorded(name: str, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, Setting("L1", "statistics"))
    reference, candidate, answer = recorder.record(Case(name, "right"))
    lines = {*read_lines(reference, f"*/{name}_*.py").values(), *read_lines(candidate, f"*/{name}_*.py").values()}

    assert answer is None
    assert [fault.name for fault in faults_of(name) if not find_pair_answer(name, fault).lines & lines] == []
    assert "# @" not in "".join(path.read_text() for path in tmp_path.glob("*/step*/*/stack.json"))


def test_a_recorded_fault_has_its_answer_and_the_lines_of_the_faulty_file(tmp_path: Path) -> None:
    case = next(case for case in list_cases("graph") if case.name == "reduction of the loss")
    _, candidate, answer = Recorder(tmp_path, Setting("mix", "tensor")).record(case)

    assert answer is not None
    named = [name for name, line in read_lines(candidate, "*/graph_*.py").items() if line in answer.lines]
    assert any(".mse_loss." in name for name in named)


@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_moves_no_line_and_leaves_the_other_side_as_it_is(name: str) -> None:
    text = (NETWORKS / f"{name}.py").read_text()
    border = text.index("(nn.Cell)")

    assert "# @" not in remove_marks(text)
    for fault in faults_of(name):
        faulty = plant(text, fault)
        changed = [one != other for one, other in zip(text.splitlines(), faulty.splitlines(), strict=True)]
        assert sum(changed) == len(fault.edits)
        assert (faulty[:border] == text[:border]) == (fault.side == "candidate")


def test_a_fault_whose_text_is_not_in_its_line_is_an_error() -> None:
    text = (NETWORKS / "graph.py").read_text()

    with pytest.raises(ValueError, match=r"wrong text: 'nowhere' is in 0 lines marked 'mean', not in one"):
        plant(text, Fault("wrong text", "mean", "nowhere", "anywhere"))
