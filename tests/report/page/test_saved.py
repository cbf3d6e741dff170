"""A page out of a saved comparison: the same page, without the dumps; and words for what is not one."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.compare.result import Comparison
from tensorprobe.compare.row import iter_blocks
from tensorprobe.errors import DumpError
from tensorprobe.report.compare_json import write_json
from tensorprobe.report.compare_summary import summarize
from tensorprobe.report.page.comparison import build_comparison_page, build_page_head
from tensorprobe.report.page.saved import build_saved_page, find_saved
from tests.report.comparison import HOSTILE_NAMES, gelu_fault, hostile
from tests.report.dump_files import forward, write_rank


def save(folder: Path, found: Comparison) -> Path:
    summary, file = summarize(found), io.BytesIO()
    write_json(file, summary, iter_blocks(found), {"page": build_page_head(found, summary)})
    (folder / "compare.json").write_bytes(file.getvalue())
    return folder / "compare.json"


@pytest.mark.parametrize("found", [gelu_fault(), *map(hostile, HOSTILE_NAMES)], ids=lambda _: "")
def test_a_saved_comparison_gives_the_page_that_it_gave_at_first(found: Comparison, tmp_path: Path) -> None:
    assert build_saved_page(save(tmp_path, found)) == build_comparison_page(found)


def test_a_folder_the_file_and_the_renamed_file_are_found(tmp_path: Path) -> None:
    path = save(tmp_path, gelu_fault())
    assert find_saved(tmp_path) == find_saved(path) == path
    renamed = path.rename(tmp_path / "monday.json")
    assert find_saved(renamed) == renamed


def test_a_run_is_no_saved_comparison(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank", {"Torch.add.0.forward": forward()})
    assert find_saved(tmp_path) is None
    assert find_saved(tmp_path / "step0" / "rank" / "dump.json") is None
    assert find_saved(tmp_path / "nowhere") is None


def test_a_table_alone_is_not_enough_and_the_option_that_writes_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "compare.csv").write_text("step\n")
    with pytest.raises(DumpError, match=r"has compare\.csv, but no compare\.json.* -o DIR --files csv,html,json"):
        find_saved(tmp_path)
    with pytest.raises(DumpError, match=r"a report is made of compare\.json.* --files csv,html,json"):
        find_saved(tmp_path / "compare.csv")


def change(path: Path, **changed: Any) -> Path:
    content = json.loads(path.read_text())
    content["page"].update(changed)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"row_calls": [0]},
        {"strings": [1]},
        {"calls": None},
        {"verdict": []},
        {"row_places": "x"},
        {"reference": 5},
        {"candidate": None},
        {"places": None},
        {"places": [1]},
        {"calls": {}},
        {"calls": {"place": 3}},
    ],
)
def test_a_damaged_file_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"is damaged, or of another version than 1"):
        build_saved_page(change(save(tmp_path, gelu_fault()), **changed))


@pytest.mark.parametrize("text", ["", "x", "{", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(DumpError, match="is not what `tensorprobe compare` writes: it is no JSON"):
        build_saved_page(tmp_path / "compare.json")


@pytest.mark.parametrize("text", ["[]", "1", '{"rows": []}', '{"page": []}'])
def test_what_has_no_page_is_refused_with_the_command_that_writes_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(DumpError, match=r"it has no page. Write it with: tensorprobe compare"):
        build_saved_page(tmp_path / "compare.json")


def test_cells_of_another_kind_than_expected_become_text(tmp_path: Path) -> None:
    path = save(tmp_path, gelu_fault())
    content = json.loads(path.read_text())
    content["rows"][0] |= {"reference_name": 7, "reference_shape": {"a": 1}, "error": ["x"], "status": ["y"]}
    path.write_text(json.dumps(content))
    page = build_saved_page(path)
    strings, rows = page["strings"], page["rows"]
    assert strings[rows["reference_name_s"][0]] == "7"
    assert strings[rows["reference_shape_s"][0]] == "{'a': 1}"
    assert strings[rows["status_s"][0]] == "['y']"
    assert rows["error"][0] == "['x']"
    json.dumps(page, allow_nan=False)


def test_what_truth_found_is_told_apart_and_its_page_is_named(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text("{}")
    for path in (tmp_path, tmp_path / "truth.json"):
        with pytest.raises(DumpError, match=r"no page is made of it. .* is gone. .* tensorprobe truth DUMP -o DIR"):
            find_saved(path)
    (tmp_path / "report.html").write_text("")
    with pytest.raises(DumpError, match=f"Its page is {re.escape(str(tmp_path / 'report.html'))}"):
        find_saved(tmp_path)
