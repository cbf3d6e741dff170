"""msprobe's own `compare` reads our dumps of two runs, pairs what it knows, and finds a planted difference.

The same two runs are also recorded by msprobe: what it pairs there is what it must pair here.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import TensorSlot
from tests.interoperation.comparison import (
    ENVIRONMENT,
    PROGRAMS,
    Row,
    finish,
    read_result,
    start,
    start_compare,
    start_program,
    tensor_pairs,
)

CASES = ("L0-statistics", "L1-tensor", "mix-md5")
TOOLS = ("tensorprobe", "msprobe")
FIELDS_OF_OURS = ("buffers", "output_kwargs")
"""Fields of a record that msprobe does not have, and passes over."""


@dataclass(frozen=True)
class Runs:
    """Two runs of one program, of which one has a planted difference, each recorded by both tools."""

    folder: Path

    def dump(self, tool: str, case: str) -> Path:
        return self.folder / tool / case

    def rank(self, tool: str, case: str) -> RankDump:
        (rank,) = open_dump(self.dump(tool, case)).ranks()
        return rank

    def rows(self, result: str) -> list[Row]:
        return read_result(self.folder / result)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Everything is made at once, two processes at a time."""
    assert (ENVIRONMENT / "msprobe").exists(), "the environment of msprobe is not there: run scripts/test msprobe"
    made = Runs(tmp_path_factory.mktemp("runs"))
    cases = [*CASES, *(f"{case}-planted" for case in CASES)]
    programs = [start_program(tool, made.folder / tool, cases) for tool in TOOLS]
    for program in programs:
        finish(program)
    for case in CASES:
        together = [
            start_compare(made.dump(tool, f"{case}-planted"), made.dump(tool, case), made.folder / f"{tool}-{case}")
            for tool in TOOLS
        ]
        for comparison in together:
            finish(comparison)
    return made


def tensor_slot_names(rank: RankDump) -> set[str]:
    """All tensors of a dump, by record and place."""
    return {
        f"{record.name}.{slot.slot}"
        for record in rank.records()
        for slot in record.slots()
        if isinstance(slot, TensorSlot)
    }


def as_ours(name: str) -> str:
    """A name of msprobe in our spelling: an operator is its method, parameter gradients have no number."""
    name = re.sub(r"^Tensor\.__i?r?(mul|add|sub|truediv)__\.", r"Tensor.\1.", name).replace("truediv", "div")
    return name.replace(".parameters_grad.0.", ".parameters_grad.")


def first_difference(rows: list[Row], rank: RankDump) -> str:
    """The first record with a result that differs."""
    records = [record.name for record in rank.records()]
    for row in rows:
        if row.is_tensor and row.differs and ".output." in row.target:
            (record,) = [name for name in records if row.target.startswith(f"{name}.")]
            return record
    raise AssertionError("nothing differs")


@pytest.mark.parametrize("case", CASES)
def test_every_record_of_ours_is_paired_with_the_one_of_the_same_name(runs: Runs, case: str) -> None:
    rows = runs.rows(f"tensorprobe-{case}")
    assert all(row.is_pair and row.target == row.golden for row in rows)
    targets = [row.target for row in rows]
    for record in runs.rank("tensorprobe", case).records():
        assert any(target.startswith(f"{record.name}.") for target in targets), record.name


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_ours_is_in_the_result(runs: Runs, case: str) -> None:
    in_result = {row.target for row in runs.rows(f"tensorprobe-{case}") if row.is_tensor}
    in_dump = tensor_slot_names(runs.rank("tensorprobe", case))  # msprobe calls keywords without a file inputs
    assert {name.replace(".kwargs.", ".input.") for name in in_dump} == {
        name.replace(".kwargs.", ".input.") for name in in_result
    }


@pytest.mark.parametrize("case", CASES)
def test_what_msprobe_pairs_of_its_own_dumps_it_pairs_of_ours(runs: Runs, case: str) -> None:
    theirs = {(as_ours(target), as_ours(golden)) for target, golden in tensor_pairs(runs.rows(f"msprobe-{case}"))}
    ours = set(tensor_pairs(runs.rows(f"tensorprobe-{case}")))
    assert theirs and {pair for pair in theirs - ours if ".backward." not in pair[0]} == set()
    # In a backward record msprobe numbers gradients as autograd's last node has them, and we as the arguments are.
    assert {without_places(pair) for pair in theirs - ours} <= {without_places(pair) for pair in ours}


def without_places(pair: tuple[str, str]) -> tuple[str, ...]:
    """A pair without the places in the records."""
    return tuple(re.sub(r"\.(input|output)\..*", r".\1", name) for name in pair)


@pytest.mark.parametrize("case", CASES)
def test_the_planted_difference_shows_at_the_same_call(runs: Runs, case: str) -> None:
    found = {tool: first_difference(runs.rows(f"{tool}-{case}"), runs.rank(tool, case)) for tool in TOOLS}
    expected = "Module.head.Head.forward.0" if case.startswith("L0") else "Functional.gelu.0.forward"
    assert found == dict.fromkeys(TOOLS, expected)


def test_our_checksums_of_forward_values_are_those_of_msprobe(runs: Runs) -> None:
    result = runs.folder / "both"
    finish(start_compare(runs.dump("tensorprobe", "mix-md5"), runs.dump("msprobe", "mix-md5"), result))
    rows = [row for row in read_result(result) if row.is_pair and row.is_tensor and ".forward." in row.target]
    theirs = {
        name
        for name in tensor_slot_names(runs.rank("msprobe", "mix-md5"))
        if ".forward." in name and "__" not in name and "kwargs" not in name
    }
    assert theirs <= {row.golden for row in rows}
    assert not [row.target for row in rows if row.differs]


def test_awkward_records_do_not_end_the_comparison(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    finish(start([sys.executable, PROGRAMS / "awkward_program.py", dump], tmp_path))
    finish(start_compare(dump, dump, tmp_path / "result"))
    rows = read_result(tmp_path / "result")
    (rank,) = open_dump(dump).ranks()
    records = list(rank.records())
    fields = {field for record in records for field in record.fields}
    assert {"failed", *FIELDS_OF_OURS} <= fields
    assert all(row.is_pair and row.target == row.golden for row in rows)
    for record in records:
        assert any(row.target.startswith(f"{record.name}.") for row in rows), record.name
