"""Steps and processes are paired by number, and what has no partner is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorprobe.compare.step import pair_layouts, pair_ranks, pair_steps
from tensorprobe.store.reader import Dump, open_dump
from tests.compare.recording import Recording


def dump(folder: Path, *places: tuple[int, str]) -> Dump:
    for step, rank in places:
        run = Recording("statistics")
        run.api("Torch.relu", run.data(np.ones(2)), output=np.ones(2))
        run.write(folder, step, rank)
    return open_dump(folder)


def test_steps_that_only_one_run_has_are_named(tmp_path: Path) -> None:
    reference = dump(tmp_path / "r", *((step, "rank") for step in range(12)))
    candidate = dump(tmp_path / "c", (0, "rank"), (12, "rank"))
    pairs, problems = pair_ranks(reference, candidate)
    assert [(pair.step, pair.reference.step, pair.candidate.step) for pair in pairs] == [(0, 0, 0)]
    assert problems == [
        "step 1, 2, 3, 4, 5, 6, 7, 8 and 3 more: only in the reference, not compared",
        "step 12: only in the candidate, not compared",
    ]


def test_one_step_is_paired_by_its_number_where_the_other_run_has_several(tmp_path: Path) -> None:
    one, several = dump(tmp_path / "r", (1, "rank")), dump(tmp_path / "c", (0, "rank"), (1, "rank"))
    for pairs, problems, side in ((*pair_ranks(one, several), "candidate"), (*pair_ranks(several, one), "reference")):
        assert [(pair.reference.step, pair.candidate.step) for pair in pairs] == [(1, 1)]
        assert problems == [f"step 0: only in the {side}, not compared"]


def test_processes_without_a_rank_are_paired_in_their_order(tmp_path: Path) -> None:
    reference = dump(tmp_path / "r", (0, "proc17"), (0, "proc4711"))
    candidate = dump(tmp_path / "c", (0, "proc21"), (0, "proc300"), (0, "rank3"))
    pairs, problems = pair_ranks(reference, candidate)
    assert [(pair.reference.folder.name, pair.candidate.folder.name) for pair in pairs] == [
        ("proc17", "proc21"),
        ("proc4711", "proc300"),
    ]
    assert problems == ["step 0: rank 3: only in the candidate, not compared"]


def test_different_numbers_of_processes_are_two_layouts(tmp_path: Path) -> None:
    one, two = dump(tmp_path / "r", (0, "rank")), dump(tmp_path / "c", (0, "rank0"), (0, "rank1"))
    ((pair,), problems) = pair_layouts(one, two)
    assert (pair.reference_name, pair.candidate_name) == ("step0/rank", "step0/rank0…1")
    assert problems == []


def test_ranks_of_which_some_were_not_recorded_are_no_other_layout(tmp_path: Path) -> None:
    two = dump(tmp_path / "r", (0, "rank0"), (0, "rank1"))
    three = dump(tmp_path / "c", (0, "rank0"), (0, "rank1"), (0, "rank2"))
    assert pair_layouts(two, three) == ([], [])
    assert pair_layouts(two, two) == ([], [])


def test_two_runs_on_all_of_several_ranks_may_be_two_layouts(tmp_path: Path) -> None:
    two = dump(tmp_path / "r", (0, "rank0"), (0, "rank1"), (1, "rank"))
    others = dump(tmp_path / "c", (0, "rank0"), (0, "rank1"), (1, "rank"))
    some = dump(tmp_path / "s", (0, "rank0"), (0, "rank3"), (1, "rank"))
    (pair,) = pair_steps(two, others)
    assert (pair.reference_name, pair.candidate_name) == ("step0/rank0…1", "step0/rank0…1")
    assert pair_steps(two, some) == []
