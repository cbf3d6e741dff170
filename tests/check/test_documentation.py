"""docs/check.md says what the code does: its first program runs and prints what the page shows, its options exist."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from tensorprobe.check.golden_run import GoldenRun
from tensorprobe.check.option import _OF_COMPARE, CheckOptions

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_first_program_prints_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, printed = BLOCKS[0][1], BLOCKS[1][1]
    path = tmp_path / "program.py"
    path.write_text(program)
    runpy.run_path(str(path))
    assert capsys.readouterr().out == printed


def test_the_test_of_the_page_runs(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(next(block for _, block in BLOCKS if "golden_run" in block), names)
    runs = GoldenRun(tmp_path / "test_page.py", "test_model")
    updated = []

    def golden_run(function: object, *inputs: object) -> None:
        updated.append(runs.update("test_model", function, inputs, {}))
        assert runs.compare("test_model", function, inputs, {})

    names["test_model"](golden_run)  # type: ignore[operator]
    assert updated == [True]


def test_every_option_is_explained() -> None:
    table = PAGE.partition("## Options")[2].partition("\n- ")[0]
    named = {word for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}
    assert named == {one.name for one in fields(CheckOptions)} - {"compare"} | set(_OF_COMPARE)
