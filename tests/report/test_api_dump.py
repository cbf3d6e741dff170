"""TroubleShooter's tables of two api_dumps: the rows first, then how they are laid out."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import Comparison
from tensorprobe.report.api_dump import FILES, Table, build_tables, format_table, write_tables

X = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)


def write_dump(
    path: Path, layer: str, output: np.ndarray, *, rank: int = 0, has_files: bool = True, **more: Any
) -> Path:
    """One layer and a function, as TroubleShooter would have dumped them."""
    values = {
        f"NN_{layer}_0_forward_input.0": X,
        f"NN_{layer}_0_forward_output": output,
        "Functional_relu_0_forward_input.0": output,
        "Functional_relu_0_forward_output": np.maximum(output, 0),
        **more,
    }
    word = "mindspore" if layer == "Dense" else "torch"
    dtype = "Float32" if layer == "Dense" else "torch.float32"
    folder = path / f"rank{rank}"
    tensors = folder / f"{word}_api_dump"
    tensors.mkdir(parents=True)
    lines = []
    for name, array in values.items():
        summary = [float(array.max()), float(array.min()), float(array.mean())]
        lines.append([name, 1, [], dtype, list(array.shape), summary])
        if has_files:
            np.save(tensors / f"{name}.npy", array)
    (folder / f"{word}_api_dump_info.pkl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def compare(reference: Path, candidate: Path) -> tuple[Comparison, list[Table]]:
    comparison = compare_runs(reference, candidate, CompareOptions(processes=1))
    return comparison, build_tables(comparison, ("pytorch", "mindspore"))


def test_the_tables_of_two_frameworks(tmp_path: Path) -> None:
    reference = write_dump(tmp_path / "a", "Linear", X * 2)
    comparison, tables = compare(reference, write_dump(tmp_path / "b", "Dense", X * 2))
    mapping, forward, backward = tables
    assert comparison and not backward.rows
    assert mapping.columns == ("ORIGIN NET (pytorch)", "TARGET NET (mindspore)")
    assert mapping.rows == (("NN_Linear_0", "NN_Dense_0"), ("Functional_relu_0", "Functional_relu_0"))
    assert forward.columns[2:] == (
        "shape of orig",
        "shape of target",
        "result of allclose",
        "ratio of allclose",
        "cosine similarity",
        "mean & max diffs",
    )
    assert forward.rows[1] == (
        "NN_Linear_0_forward_output",
        "NN_Dense_0_forward_output",
        "[2, 2]",
        "[2, 2]",
        "True",
        "100.00%",
        "1.00000",
        "0.00000, 0.00000",
    )
    assert [row[0] for row in forward.rows] == [
        "NN_Linear_0_forward_input.0",
        "NN_Linear_0_forward_output",
        "Functional_relu_0_forward_input.0",
        "Functional_relu_0_forward_output",
    ]


def test_a_difference_has_its_numbers_and_a_verdict(tmp_path: Path) -> None:
    other = X * 2
    other[0, 0] += 1
    reference = write_dump(tmp_path / "a", "Linear", X * 2)
    comparison, (_, forward, _) = compare(reference, write_dump(tmp_path / "b", "Dense", other))
    assert forward.rows[1][4:] == ("False", "75.00%", "0.99697", "0.25000, 1.00000")
    assert comparison.verdict.call is not None and comparison.verdict.call.name == "NN_Linear_0_forward"


def test_statistics_alone_are_compared_by_their_differences(tmp_path: Path) -> None:
    reference = write_dump(tmp_path / "a", "Linear", X * 2, has_files=False)
    _, (_, forward, _) = compare(reference, write_dump(tmp_path / "b", "Dense", X * 2 + 1, has_files=False))
    assert forward.columns[-1] == "max, min, mean diffs"
    assert forward.rows[0][-1] == "0.00000, 0.00000, 0.00000"
    assert forward.rows[1][-1] == "1.00000, 1.00000, 1.00000"


def test_a_call_of_one_side_and_another_shape_have_words(tmp_path: Path) -> None:
    reference = write_dump(tmp_path / "a", "Linear", X * 2, Torch_sin_0_forward_output=X + 9)
    _, (mapping, forward, _) = compare(reference, write_dump(tmp_path / "b", "Dense", np.ones((2, 3), np.float32)))
    assert ("Torch_sin_0", "") in mapping.rows
    results = {row[0]: row[4] for row in forward.rows}
    assert results["Torch_sin_0_forward_output"] == "only in orig"
    assert results["NN_Linear_0_forward_output"] == "Shape is inconsistent"


def test_a_corrupt_file_is_one_row(tmp_path: Path) -> None:
    reference = write_dump(tmp_path / "a", "Linear", X * 2)
    candidate = write_dump(tmp_path / "b", "Dense", X * 2)
    (candidate / "rank0" / "mindspore_api_dump" / "NN_Dense_0_forward_output.npy").write_bytes(b"\x93NUMPY")
    _, (_, forward, _) = compare(reference, candidate)
    assert "NN_Dense_0_forward_output.npy" in forward.rows[1][4] and forward.rows[0][4] == "True"


def test_backward_rows_are_in_a_table_of_their_own(tmp_path: Path) -> None:
    more = {"Functional_relu_0_backward_input": X, "Functional_relu_0_backward_output.0": X}
    reference = write_dump(tmp_path / "a", "Linear", X * 2, **more)
    _, (mapping, forward, backward) = compare(reference, write_dump(tmp_path / "b", "Dense", X * 2, **more))
    assert [row[0] for row in backward.rows] == list(more)
    assert len(mapping.rows) == 2 and len(forward.rows) == 4


def test_a_table_is_drawn_whole_and_never_wrapped(tmp_path: Path) -> None:
    reference = write_dump(tmp_path / "a", "Linear", X * 2)
    _, tables = compare(reference, write_dump(tmp_path / "b", "Dense", X * 2))
    text = format_table(tables[1])
    assert "The forward comparison results" in text
    assert len({len(line) for line in text.splitlines()}) == 1 and len(text.splitlines()) == 10


def test_the_files_hold_the_same_rows_and_only_a_header_without_backward(tmp_path: Path) -> None:
    reference = write_dump(tmp_path / "a", "Linear", X * 2)
    comparison, tables = compare(reference, write_dump(tmp_path / "b", "Dense", X * 2))
    (tmp_path / FILES[0]).write_text("older and longer\n" * 100)
    assert write_tables(tmp_path, comparison, tables) == [tmp_path / name for name in FILES]
    read = [list(csv.reader((tmp_path / name).open(newline=""))) for name in FILES]
    for table, lines in zip(tables, read, strict=True):
        assert lines == [list(table.columns), *map(list, table.rows)]
    assert len(read[2]) == 1


def test_every_rank_has_its_tables_and_its_rows(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_dump(tmp_path / "a", "Linear", X * 2, rank=rank)
        write_dump(tmp_path / "b", "Dense", X * 2 + rank, rank=rank)
    comparison, tables = compare(tmp_path / "a", tmp_path / "b")
    assert not comparison
    assert [table.title for table in tables[::3]] == [
        f"The APIs mapping results of the two frameworks (rank{rank})" for rank in (0, 1)
    ]
    write_tables(tmp_path, comparison, tables)
    lines = list(csv.reader((tmp_path / FILES[1]).open(newline="")))
    assert lines[0][0] == "RANK" and [line[0] for line in lines[1:]] == ["rank0"] * 4 + ["rank1"] * 4


def test_a_name_from_a_dump_is_no_formula_and_no_terminal_command(tmp_path: Path) -> None:
    evil = {"Torch_=1+1\x1b[2J_0_forward_output": X}
    reference = write_dump(tmp_path / "a", "Linear", X * 2, has_files=False, **evil)
    comparison, tables = compare(reference, write_dump(tmp_path / "b", "Dense", X * 2, has_files=False))
    assert "\x1b" not in format_table(tables[0])
    write_tables(tmp_path, comparison, tables)
    assert "\x1b" not in (tmp_path / FILES[0]).read_text()
