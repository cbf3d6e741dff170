"""The held-out refactors inside PyTorch are right by numbers, and each fault is what it says. No comparison."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from held_out.check import check_refactor
    from held_out.fault import find_border, plant, remove_marks
    from held_out.record import REFACTORS, Case, Recorder, Setting, find_pair_answer, list_cases, read_lines
    from held_out.source import load_network, path_of
finally:
    sys.path.remove(str(BENCHMARKS))

SHORT = ("lstm", "shop")
"""The corpus changes seldom: all of it is checked in the long form."""
NAMES = [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in REFACTORS]


@pytest.mark.parametrize("name", NAMES)
def test_both_networks_have_the_same_loss_and_gradients_and_each_fault_changes_what_it_says(name: str) -> None:
    assert list(check_refactor(name)) == []


@pytest.mark.parametrize("name", REFACTORS)
def test_a_fault_moves_no_line_and_leaves_the_other_side_as_it_is(name: str) -> None:
    text = path_of(name).read_text()
    border = len("".join(text.splitlines(keepends=True)[: find_border(text.splitlines())]))

    assert "# @" not in remove_marks(text)
    for fault in load_network(name, "reference").FAULTS:
        faulty = plant(text, fault)
        changed = [one != other for one, other in zip(text.splitlines(), faulty.splitlines(), strict=True)]
        assert sum(changed) == len(fault.edits)
        assert (faulty[:border] == text[:border]) == (fault.side == "candidate")


@pytest.mark.parametrize("name", NAMES)
def test_each_answer_has_a_line_of_each_side_at_which_a_call_is_recorded(name: str, tmp_path: Path) -> None:
    reference, candidate, answer = Recorder(tmp_path, Setting("L1", "statistics")).record(Case(name, "right"))

    assert answer is None
    for dump in (reference, candidate):
        lines = set(read_lines(dump, f"*/{name}_*.py").values())
        faults = [case.fault for case in list_cases(name) if case.fault is not None]
        assert [fault.name for fault in faults if not find_pair_answer(name, fault).lines & lines] == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "autocast"])
def test_both_sides_are_recorded_in_another_type(dtype: str, tmp_path: Path) -> None:
    dumps = Recorder(tmp_path, Setting("L1", "statistics", dtype)).record(Case("shop", "right"))[:2]

    word = "bfloat16" if dtype == "autocast" else dtype
    assert all(word in (dump / "step0" / "rank" / "dump.json").read_text().lower() for dump in dumps)
