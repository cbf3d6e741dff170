"""docs/compare.md says what the code does: no column, word, option or key is missing, and its example runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from tensorprobe.cli.compare import compare
from tensorprobe.compare.result import ROLES, STATUSES, VerdictKind
from tensorprobe.compare.row import COLUMNS
from tensorprobe.report.compare_json import iter_compare_json
from tensorprobe.report.compare_summary import summarize
from tests.report.comparison import gelu_fault
from tests.report.dump_files import forward, tensor, write_rank

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "compare.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """From its heading to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title}"
    return found[1]


def words_of_first_cells(text: str) -> list[str]:
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


def test_every_column_is_explained_once_and_no_other() -> None:
    assert sorted(words_of_first_cells(section("Columns"))) == sorted(COLUMNS)


def test_the_columns_of_other_tools_lead_to_columns_that_there_are() -> None:
    table = section("For those who know msprobe's or TroubleShooter's columns")
    named = re.findall(r"`(\w+)`", table)
    assert len(named) > 30
    assert set(named) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("title", "words"), [("Statuses", STATUSES), ("Roles", ROLES), ("Verdicts", get_args(VerdictKind))]
)
def test_every_word_is_explained(title: str, words: tuple[str, ...]) -> None:
    assert sorted(words_of_first_cells(section(title))) == sorted(words)


def test_every_option_is_explained() -> None:
    named = {word.split()[0] for word in words_of_first_cells(section("Options"))}
    names = {"output": "-o", "as_json": "--json"}
    hidden = {"output_format"}  # --format, as --json was spelt before
    parameters = set(compare.__annotations__) - {"reference", "candidate", "return"} - hidden
    options = {names.get(name, f"--{name.replace('_', '-')}") for name in parameters}
    assert named - {"--output"} == options
    assert all(option in PAGE.split("```")[1] for option in options)


def test_every_key_of_the_json_is_explained() -> None:
    content = json.loads("".join(iter_compare_json(summarize(gelu_fault()), [])))
    assert set(words_of_first_cells(section("JSON"))) == set(content) - {"tensorprobe"}


def test_the_example_in_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    for name, value in (("good", 2.0), ("bad", 2.5)):
        write_rank(tmp_path / name, {"Torch.exp.0.forward": forward(tensor(1.0), output=tensor(value))})
    example = re.search(r"```python\n(.*?)```", section("In Python"), re.DOTALL)
    assert example
    exec(compile(example[1], "docs/compare.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "Torch.exp.0.forward" in printed.splitlines()[0]
    assert "Torch.exp.0.forward.output.0" in printed.splitlines()[-1]
