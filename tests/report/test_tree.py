"""The rows of `show`: nesting, order, folding, selecting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.report.rank import RankReport, ShowOptions, build_rank_report
from tensorprobe.report.table import UNICODE_GUIDES, iter_lines
from tensorprobe.report.tree import Row, fold_framework_calls, mark_last
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import forward, model_parents, model_records, tensor, write_killed_rank, write_rank


def read(folder: Path, options: ShowOptions | None = None) -> RankReport:
    return build_rank_report(next(open_dump(folder).ranks()), options)


def outline(rows: tuple[Row, ...] | list[Row]) -> list[str]:
    return ["  " * row.depth + row.label for row in rows]


def test_calls_stand_in_their_modules_and_modules_in_order(tmp_path: Path) -> None:
    report = read(write_rank(tmp_path, model_records(), model_parents()))
    assert outline(report.rows) == [
        "Net",
        "  block: Block",
        "    fc: Linear",
        "      Functional.linear.0",
        "    Torch.log.0",
        "Functional.mse_loss.0",
        "block.fc: Linear",
        "  Functional.linear.0",
        "  parameter gradients",
        "Tensor.add_.0",
    ]
    assert [row.direction for row in report.rows[5:8]] == ["forward", "backward", "backward"]
    assert [row.is_last for row in report.rows[:5]] == [False, True, False, True, True]


def test_at_l1_calls_are_grouped_by_their_module_path(tmp_path: Path) -> None:
    paths = ["", "layers.0.fc", "layers.0", "layers.1.fc", "layers.1", "head"]
    records: dict[str, Any] = {f"Torch.add.{i}.forward": forward(module_path=path) for i, path in enumerate(paths)}
    records |= {"Torch.add.2.backward": forward(module_path="layers.0"), "Torch.mul.0.forward": forward()}
    assert outline(read(write_rank(tmp_path, records)).rows) == [
        "Torch.add.0",
        "layers",
        "  0",
        "    fc",
        "      Torch.add.1",
        "    Torch.add.2",
        "  1",
        "    fc",
        "      Torch.add.3",
        "    Torch.add.4",
        "head",
        "  Torch.add.5",
        "layers.0",
        "  Torch.add.2",
        "Torch.mul.0",
    ]


def test_a_second_call_of_a_module_is_counted(tmp_path: Path) -> None:
    records = {"Module.fc.Linear.forward.0": forward(), "Module.fc.Linear.forward.1": forward()}
    assert outline(read(write_rank(tmp_path, records, dict.fromkeys(records))).rows) == ["fc: Linear", "fc: Linear #1"]


def test_modules_that_a_kill_left_without_a_record_still_hold_their_calls(tmp_path: Path) -> None:
    records = {"Functional.linear.0.forward": forward()}
    parents = {
        "Functional.linear.0.forward": "Module.fc.Linear.forward.0",
        "Module.fc.Linear.forward.0": "Module.Net.forward.0",
    }
    rows = read(write_rank(tmp_path, records, parents)).rows
    assert outline(rows) == ["Net", "  fc: Linear", "    Functional.linear.0"]
    assert [row.kind for row in rows] == ["absent", "absent", "call"]


def test_nesting_in_circles_ends(tmp_path: Path) -> None:
    records = {name: forward() for name in ("Module.a.A.forward.0", "Module.b.B.forward.0", "Torch.add.0.forward")}
    parents: dict[str, str | None] = {
        "Module.a.A.forward.0": "Module.b.B.forward.0",
        "Module.b.B.forward.0": "Module.a.A.forward.0",
        "Torch.add.0.forward": "Torch.add.0.forward",
    }
    assert len(read(write_rank(tmp_path, records, parents)).rows) == 3


def test_nesting_deeper_than_pythons_stack_is_shown(tmp_path: Path) -> None:
    parents: dict[str, str | None] = {f"Module.a.A.forward.{i}": f"Module.a.A.forward.{i + 1}" for i in range(5_000)}
    rows = read(write_rank(tmp_path, {"Module.a.A.forward.0": forward()}, parents)).rows
    assert (len(rows), rows[-1].depth) == (5_001, 5_000)


def test_lines_of_a_deep_nesting_begin_with_a_bounded_number_of_marks(tmp_path: Path) -> None:
    parents: dict[str, str | None] = {f"Module.a.A.forward.{i}": f"Module.a.A.forward.{i + 1}" for i in range(5_000)}
    rows = read(write_rank(tmp_path, {"Module.a.A.forward.0": forward()}, parents)).rows
    lines = list(iter_lines(rows, UNICODE_GUIDES, None))
    assert len(lines) >= 5_001 and max(len(line.guide) for line in lines) <= 603


def test_a_path_of_a_hundred_thousand_modules_is_one_level(tmp_path: Path) -> None:
    """Each level of a path has a name that repeats all before it: their number is bounded."""
    deep = ".".join(["a"] * 100_000)
    records = {
        "Torch.sin.0.forward": forward(module_path=deep),
        "Torch.sin.1.forward": forward(module_path=deep),
        "Torch.sin.2.forward": forward(module_path=f"{deep}.b"),
        "Torch.sin.3.forward": forward(module_path="a.b"),
    }
    rows = read(write_rank(tmp_path, records)).rows
    assert [row.record for row in rows if row.kind == "call"] == list(records)
    assert len(rows) <= 8


@given(st.lists(st.integers(0, 5), max_size=30))
def test_the_last_row_of_each_parent_is_marked(depths: list[int]) -> None:
    rows = mark_last([Row(str(n), "", "call", None, depth, None, None) for n, depth in enumerate(depths)])
    for number, row in enumerate(rows):
        after = depths[number + 1 :]
        end = next((place for place, depth in enumerate(after) if depth < row.depth), len(after))
        assert row.is_last == (row.depth not in after[:end])


def test_names_that_follow_no_grammar_are_shown_as_they_are(tmp_path: Path) -> None:
    assert outline(read(write_rank(tmp_path, {"": forward(), "what is this": forward()})).rows) == ["", "what is this"]


def test_depth_keeps_the_outer_levels_and_counts_the_rest(tmp_path: Path) -> None:
    rows = read(write_rank(tmp_path, model_records(), model_parents()), ShowOptions(depth=2)).rows
    assert outline(rows)[:2] == ["Net", "  block: Block"]
    assert [row.hidden_count for row in rows[:3]] == [0, 3, 0]
    assert max(row.depth for row in rows) == 1


def test_a_filter_keeps_what_contains_it_and_what_is_around(tmp_path: Path) -> None:
    folder = write_rank(tmp_path, model_records(), model_parents())
    rows = read(folder, ShowOptions(filter="torch.LOG")).rows
    assert [(row.label, row.is_context) for row in rows] == [
        ("Net", True),
        ("block: Block", True),
        ("Torch.log.0", False),
    ]
    assert [row.label for row in read(folder, ShowOptions(filter="optimizer")).rows] == ["Tensor.add_.0"]
    by_path = read(folder, ShowOptions(filter="block.fc")).rows
    assert "Functional.linear.0" in [row.label for row in by_path if not row.is_context]
    assert read(folder, ShowOptions(filter="nowhere")).rows == ()


def test_the_optimizers_calls_fold_into_one_row_except_for_the_notable_one(tmp_path: Path) -> None:
    records = {f"Tensor.add_.{i}.forward": forward(caller="optimizer") for i in range(12)}
    rows = list(read(write_rank(tmp_path, records)).rows)
    folded = fold_framework_calls(rows, {"Tensor.add_.6.forward"})
    assert outline(folded) == ["6 calls by the framework itself", "Tensor.add_.6", "5 calls by the framework itself"]
    assert outline(fold_framework_calls(rows[:3], set())) == outline(rows[:3])


def test_facts_of_a_step(tmp_path: Path) -> None:
    records = {**model_records(), "Torch.matmul.0.forward": forward(failed="RuntimeError: shapes")}
    report = read(write_rank(tmp_path, records, model_parents()))
    assert [call.name for call in report.failed] == ["Torch.matmul.0.forward"]
    assert [record for record, _ in report.scalars] == ["Functional.mse_loss.0.forward"]
    assert [(one.parameter, one.is_finite, one.norm) for one in report.gradients] == [
        ("block.fc.weight", False, 1.0),
        ("block.fc.bias", True, 0.0),
    ]
    assert report.coverage is not None
    assert report.coverage["unseen"] == {"compiled region": 2}


def test_a_killed_run_is_reported_as_such(tmp_path: Path) -> None:
    report = read(write_killed_rank(tmp_path, {"Torch.add.0.forward": forward(tensor())}))
    assert not report.is_complete
    assert report.coverage is None
    assert report.record_count == 1
