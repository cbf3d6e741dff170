"""Folders of several runs are never taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.option import CompareOptions
from tensorprobe.errors import DumpError
from tensorprobe.store.reader import open_dump
from tensorprobe.store.recover import recover_dump
from tests.report.dump_files import RUN, model_records, write_rank

FIRST = "20250703-101512-aaaaaa"
SECOND = "20250704-081500-bbbbbb"
BEGUN = {FIRST: "2025-07-03T10:15:12.345+00:00", SECOND: "2025-07-04T08:15:00.000+00:00"}


def write(dump_path: Path, folder: str, run_id: str | None, **run: Any) -> None:
    identity = {} if run_id is None else {"run_id": run_id, "started": BEGUN[run_id]}
    write_rank(dump_path / folder, model_records(), run={**RUN, **identity, **run})


def write_mixture(dump_path: Path) -> None:
    """As five steps and then two left them."""
    for step, run_id in enumerate([SECOND, SECOND, FIRST, FIRST]):
        write(dump_path, f"step{step}/rank", run_id)


def test_a_mixture_is_refused_and_each_run_named_with_its_time_and_its_steps(tmp_path: Path) -> None:
    write_mixture(tmp_path)
    with pytest.raises(DumpError) as caught:
        open_dump(tmp_path).select()
    assert str(caught.value) == (
        f"{tmp_path} holds folders of 2 runs, which cannot be read as one:\n"
        f"  run {FIRST} (2025-07-03 10:15:12 UTC): step2/rank, step3/rank\n"
        f"  run {SECOND} (2025-07-04 08:15:00 UTC): step0/rank, step1/rank\n"
        "Move the folders of the run that you do not want out of it, or name one step or rank (--step, --rank, or its "
        "folder) that belongs to one run alone."
    )


def test_compare_and_recover_refuse_it_too(tmp_path: Path) -> None:
    write_mixture(tmp_path / "mixed")
    write(tmp_path / "good", "step0/rank", FIRST)
    for pair in (("mixed", "good"), ("good", "mixed")):
        with pytest.raises(DumpError, match="mixed holds folders of 2 runs"):
            compare_runs(*(tmp_path / name for name in pair), CompareOptions())
    with pytest.raises(DumpError, match="mixed holds folders of 2 runs"):
        recover_dump(tmp_path / "mixed")


def test_one_step_of_it_is_of_one_run(tmp_path: Path) -> None:
    write_mixture(tmp_path)
    assert [rank.name for rank in open_dump(tmp_path).select(step=2).ranks()] == ["step2/rank"]
    assert [rank.name for rank in open_dump(tmp_path / "step0").select().ranks()] == ["step0/rank"]


def test_ranks_of_two_runs_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "step0/rank0", FIRST)
    write(tmp_path, "step0/rank1", SECOND)
    with pytest.raises(DumpError, match=rf"run {FIRST} .*: step0/rank0\n  run {SECOND} .*: step0/rank1\n"):
        open_dump(tmp_path).select()
    assert open_dump(tmp_path).select(rank=1)


def test_runs_of_one_process_are_told_apart(tmp_path: Path) -> None:
    for step, count in enumerate(["", ".2"]):
        run = {**RUN, "run_id": f"{FIRST}{count}", "started": BEGUN[FIRST]}
        write_rank(tmp_path / f"step{step}" / "rank", model_records(), run=run)
    with pytest.raises(DumpError, match=rf"run {FIRST}\.2 "):
        open_dump(tmp_path).select()


def test_a_run_with_an_id_beside_one_without_is_a_mixture(tmp_path: Path) -> None:
    write(tmp_path, "step0/rank", FIRST)
    write_rank(tmp_path / "step1" / "rank", model_records(), run=None)  # msprobe's
    with pytest.raises(DumpError, match=r"a run without an id \(time unknown\): step1/rank"):
        open_dump(tmp_path).select()


def test_where_no_folder_has_an_id_it_is_one_run(tmp_path: Path) -> None:
    write(tmp_path, "step0/rank", None)
    write_rank(tmp_path / "step1" / "rank", model_records(), run=None)
    assert len(open_dump(tmp_path).select().steps) == 2


def test_a_run_file_that_cannot_be_read_is_a_problem_and_no_other_run(tmp_path: Path) -> None:
    write(tmp_path, "step0/rank", FIRST)
    write(tmp_path, "step1/rank", FIRST)
    (tmp_path / "step1" / "rank" / "run.json").write_text("{")
    dump = open_dump(tmp_path).select()
    assert any("run.json" in problem for rank in dump.ranks() for problem in rank.problems)


def test_a_run_file_that_leads_out_of_the_dump_is_a_problem_and_no_other_run(tmp_path: Path) -> None:
    write(tmp_path / "dump", "step0/rank", FIRST)
    write(tmp_path / "dump", "step1/rank", FIRST)
    link = tmp_path / "dump" / "step1" / "rank" / "run.json"
    link.rename(tmp_path / "run.json")
    link.symlink_to(tmp_path / "run.json")
    dump = open_dump(tmp_path / "dump").select()
    assert any("leads out of the dump" in problem for rank in dump.ranks() for problem in rank.problems)


def test_a_folder_without_records_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "step0/rank", FIRST)
    (tmp_path / "step0" / "rank0").mkdir()
    (tmp_path / "step0" / "rank0" / "x_float32_0.npy").touch()
    assert open_dump(tmp_path).select()


@pytest.mark.parametrize(
    ("hosts", "sizes", "is_one"),
    [
        (("one", "two"), ("2", "2"), True),
        (("one", "one"), ("2", "2"), False),
        (("one", "two"), ("2", "4"), False),
        (("one", "two"), (None, None), False),
    ],
)
def test_what_the_nodes_of_a_program_wrote_apart_may_be_put_together(
    hosts: tuple[str, str], sizes: tuple[str | None, str | None], is_one: bool, tmp_path: Path
) -> None:
    for rank, run_id in enumerate([FIRST, SECOND]):
        environment = {} if sizes[rank] is None else {"WORLD_SIZE": sizes[rank]}
        write(tmp_path, f"step0/rank{rank}", run_id, host=hosts[rank], environment=environment)
    if is_one:
        assert len(list(open_dump(tmp_path).select().ranks())) == 2
    else:
        with pytest.raises(DumpError, match="2 runs"):
            open_dump(tmp_path).select()


def test_a_hostile_id_is_none(tmp_path: Path) -> None:
    for step, run_id in enumerate(["\x1b[31m", ["a"], {"b": 1}]):
        write(tmp_path, f"step{step}/rank", None)
        path = tmp_path / f"step{step}" / "rank" / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": run_id, "started": [1]}))
    assert len(open_dump(tmp_path).select().steps) == 3
