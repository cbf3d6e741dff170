"""compare.xlsx, read back by another library: colours, filters, and nothing that executes."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.result import Comparison
from tensorprobe.compare.row import COLUMNS, build_rows, iter_blocks
from tensorprobe.report.compare_summary import summarize
from tensorprobe.report.compare_xlsx import write_xlsx
from tests.length import PATIENCE_SECONDS
from tests.report.comparison import (
    HOSTILE_NAMES,
    call_result,
    comparison,
    gelu_fault,
    hostile,
    pair,
    rank_result,
    tensor,
)

openpyxl = pytest.importorskip("openpyxl")
pytest.importorskip("xlsxwriter")

INJECTED_CELL = "<r><t>x</t></r></is></c><c r='B9' t='str'><f>1+1</f><v>2</v></c><c r='C9' t='inlineStr'><is><r></r>"


def render(found: Comparison, folder: Path, **more: Any) -> bytes:
    file = io.BytesIO()
    write_xlsx(file, summarize(found), iter_blocks(found), folder, **more)
    return file.getvalue()


def read(found: Comparison, folder: Path, **more: Any) -> Any:
    return openpyxl.load_workbook(io.BytesIO(render(found, folder, **more)))


def cells(book: Any, row: int) -> dict[str, Any]:
    return {name: book["values"].cell(row, index) for index, name in enumerate(COLUMNS, 1)}


def test_the_first_sheet_holds_the_verdict(tmp_path: Path) -> None:
    book = read(gelu_fault(), tmp_path)
    assert book.sheetnames == ["verdict", "values"]
    lines = [tuple(cell.value for cell in row) for row in book["verdict"].iter_rows()]
    assert lines[0] == ("verdict", "The runs part at Functional.gelu.0.forward in blocks.0.")
    assert lines[1] == (None, "its inputs agree: input.0 is equal")
    assert ("circumstances", "settings.threads: 2 in the reference, 1 in the candidate") in lines
    assert ("calls", "1 source · 1 entered · 1 propagated · 1 clean") in lines


def test_the_second_sheet_holds_the_rows(tmp_path: Path) -> None:
    book = read(gelu_fault(), tmp_path)
    sheet = book["values"]
    assert [cell.value for cell in sheet[1]] == list(COLUMNS)
    assert sheet.max_row == 1 + 9
    row = cells(book, 5)
    assert row["reference_name"].value == "Functional.gelu.0.forward.output.0"
    assert (row["error"].value, row["error"].data_type) == (0.25, "n")
    assert (row["is_equal"].value, row["is_equal"].data_type) == (False, "b")
    assert row["reference_shape"].value == "[2, 3]"


def test_the_header_stays_in_sight_and_every_column_can_be_filtered(tmp_path: Path) -> None:
    sheet = read(gelu_fault(), tmp_path)["values"]
    assert sheet.freeze_panes == "A2"
    last = openpyxl.utils.get_column_letter(len(COLUMNS))
    assert sheet.auto_filter.ref == f"A1:{last}10"
    assert sheet.column_dimensions["C"].width > 30


def test_status_and_role_are_coloured(tmp_path: Path) -> None:
    book = read(gelu_fault(), tmp_path)
    clean, source = cells(book, 2), cells(book, 5)
    colours = {cell.fill.fgColor.rgb for cell in (clean["status"], source["status"], source["role"])}
    assert len(colours) == 3
    assert clean["role"].fill.fill_type is None
    assert source["error"].fill.fill_type is None


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, INJECTED_CELL], ids=range(len(HOSTILE_NAMES) + 1))
def test_no_text_is_a_formula_a_link_or_markup(name: str, tmp_path: Path) -> None:
    found = hostile(name)
    content = render(found, tmp_path)
    book = openpyxl.load_workbook(io.BytesIO(content))
    assert book["values"].max_row == 1 + len(build_rows(found))
    for sheet in book:
        for row in sheet.iter_rows():
            for cell in row:
                assert cell.data_type != "f"
                assert cell.hyperlink is None
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert not any(b"<f>" in archive.read(member) for member in archive.namelist() if "sheets" in member)


def test_names_can_be_read_back(tmp_path: Path) -> None:
    for name in ("=1+1", "<b>&\"'", "http://example.com", "[x]", "é运"):
        assert cells(read(hostile(name), tmp_path), 2)["reference_dtype"].value == name
    assert cells(read(hostile("\x00\x1b"), tmp_path), 2)["reference_dtype"].value == "\\x00\\x1b"


def test_numbers_that_a_cell_cannot_hold_are_text(tmp_path: Path) -> None:
    measurement = Measurement("tensor", cosine=math.nan, max_abs_error=math.inf, max_ulp=2**63, worst_reference=1j)
    values = (pair(tensor(min=-math.inf, max=2**53), tensor(), "different", measurement=measurement),)
    row = cells(read(comparison(rank_result(call_result(values=values))), tmp_path), 2)
    assert (row["cosine"].value, row["max_abs_error"].value) == ("NaN", "Infinity")
    assert (row["max_ulp"].value, row["worst_reference"].value) == (str(2**63), "1j")
    assert (row["reference_min"].value, row["reference_max"].value) == ("-Infinity", 2**53)


def test_rows_beyond_what_a_sheet_holds_are_left_out_with_a_word(tmp_path: Path) -> None:
    file = io.BytesIO()
    left_out = write_xlsx(file, summarize(gelu_fault()), iter_blocks(gelu_fault()), tmp_path, max_rows=4)
    assert left_out == "a sheet holds 4 rows: the last 5 of 9 are only in compare.csv and compare.json"
    book = openpyxl.load_workbook(file)
    assert book["values"].max_row == 5
    assert left_out in [cell.value for cell in book["verdict"]["B"]]


def test_steps_and_ranks_stand_on_the_first_sheet(tmp_path: Path) -> None:
    found = comparison(rank_result(rank="rank0"), rank_result(call_result(role="source"), step=1, rank="rank0"))
    sheet = read(found, tmp_path)["verdict"]
    lines = [tuple(cell.value for cell in row) for row in sheet.iter_rows()]
    assert lines[-2:] == [("step0/rank0", "agree"), ("step1/rank0", "source")]


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    render(gelu_fault(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_xlsxwriter_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['xlsxwriter'] = None\n"
        "from tensorprobe.errors import UsageError\n"
        "from tensorprobe.report.compare_xlsx import check_xlsx\n"
        "try:\n    check_xlsx()\nexcept UsageError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == 'compare.xlsx needs xlsxwriter: pip install "tensorprobe[compare]"\n'


def test_what_looks_like_an_escape_is_shown_as_it_is_written(tmp_path: Path) -> None:
    assert cells(read(hostile("_x0041_"), tmp_path), 2)["reference_dtype"].value in ("_x0041_", "_x005F_x0041_")
    with zipfile.ZipFile(io.BytesIO(render(hostile("_x0041_"), tmp_path))) as archive:
        assert b">_x0041_<" not in archive.read("xl/worksheets/sheet2.xml")


def test_every_cell_of_the_rows_stands_in_its_column(tmp_path: Path) -> None:
    sheet = read(gelu_fault(), tmp_path)["values"]
    for line, row in enumerate(build_rows(gelu_fault()), 2):
        for index, name in enumerate(COLUMNS, 1):
            cell, value = sheet.cell(line, index).value, getattr(row, name)
            assert cell == (str(list(value)) if isinstance(value, tuple) else value), (line, name)
