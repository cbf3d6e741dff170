"""The stacks of both sides in a page: of what is not clean, each distinct one once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorprobe
from tensorprobe.report.page.comparison import build_comparison_page
from tests.report.dump_files import forward, tensor, write_rank

LINES = ["File model.py, line 18, in forward, \n x = self.fc(x)", "File train.py, line 3, in main, \n model(x)"]
NAMES = [f"Functional.linear.{number}.forward" for number in range(3)]


def write_run(folder: Path, results: tuple[float, ...], stacks: dict[str, Any]) -> Path:
    pairs = zip(NAMES, results, strict=True)
    records = {name: forward(tensor(), output=tensor(result)) for name, result in pairs}
    write_rank(folder / "step0" / "rank", records, stacks=stacks)
    return folder


def test_each_call_that_is_not_clean_has_its_stack_on_both_sides(tmp_path: Path) -> None:
    reference = write_run(tmp_path / "good", (1.0, 1.0, 1.0), {"0": [NAMES, LINES]})
    candidate = write_run(tmp_path / "bad", (1.0, 2.0, 2.0), {"0": [NAMES[:2], LINES], "1": [NAMES[2:], LINES[:1]]})
    page = build_comparison_page(tensorprobe.compare(reference, candidate))
    stacks = [[page["strings"][number] for number in stack] for stack in page["stacks"]]
    both = ["model.py:18 in forward: x = self.fc(x)", "train.py:3 in main: model(x)"]
    assert stacks == [both, both[:1]]
    assert page["calls"]["stack_reference"] == [-1, 0, 0]
    assert page["calls"]["stack_candidate"] == [-1, 0, 1]


def test_runs_that_agree_have_none(tmp_path: Path) -> None:
    both = [write_run(tmp_path / name, (1.0, 1.0, 1.0), {"0": [NAMES, LINES]}) for name in ("good", "same")]
    page = build_comparison_page(tensorprobe.compare(*both))
    assert page["stacks"] == []
    assert not {"stack_reference", "stack_candidate"} & page["calls"].keys()
