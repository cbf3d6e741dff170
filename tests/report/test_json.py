"""`show --json`: strict, whole, and with everything in it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tensorprobe.report.json import iter_json, make_strict
from tensorprobe.report.rank import ShowOptions, build_rank_report
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import (
    HEADER,
    MODEL_STACKS,
    forward,
    model_parents,
    model_records,
    tensor,
    write_lines,
    write_rank,
)


def load_strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def render(path: Path, options: ShowOptions | None = None) -> Any:
    reports = (build_rank_report(rank, options) for rank in open_dump(path).ranks())
    return load_strict("".join(iter_json(str(path), reports)))


def test_numbers_that_json_lacks_are_strings(tmp_path: Path) -> None:
    leaf = {**tensor(math.nan), "Min": -math.inf, "Norm": math.inf}
    content = render(write_rank(tmp_path, {"Torch.add.0.forward": forward(output=leaf)}))
    slot = content["ranks"][0]["records"][0]["slots"][0]
    assert (slot["max"], slot["min"], slot["norm"]) == ("NaN", "-Infinity", "Infinity")


def test_all_of_a_dump_is_in_it(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank0", model_records(), model_parents(), stacks=MODEL_STACKS)
    write_rank(tmp_path / "step1" / "rank0", {})
    write_lines(tmp_path / "step1" / "rank0" / "debug.json", HEADER, {"x.0.debug": tensor()}, "}}")
    content = render(tmp_path)
    first, second = content["ranks"]
    assert (first["step"], first["rank"], first["task"], first["complete"]) == (0, 0, "statistics", True)
    assert {row["record"] for row in first["records"]} == set(model_records())
    assert first["coverage"]["unseen"] == {"compiled region": 2}
    assert first["non_finite"][0]["record"] == "Torch.log.0.forward"
    assert first["non_finite"][0]["origins"] == {"NaN": "arises"}
    assert first["non_finite"][0]["location"] == "/x/model.py:18 in forward: y = torch.log(x)"
    linear = next(row for row in first["records"] if row["record"] == "Functional.linear.0.forward")
    assert (linear["parent"], linear["depth"]) == ("Module.block.fc.Linear.forward.0", 3)
    assert [slot["slot"] for slot in linear["slots"]] == ["input.0", "input.1", "output.0"]
    assert [row["record"] for row in second["saved"]] == ["x.0.debug"]
    assert second["records"] == []


def test_depth_and_filter_apply(tmp_path: Path) -> None:
    write_rank(tmp_path, model_records(), model_parents())
    assert len(render(tmp_path, ShowOptions(filter="Torch.log"))["ranks"][0]["records"]) == 3
    assert {row["depth"] for row in render(tmp_path, ShowOptions(depth=1))["ranks"][0]["records"]} == {0}


def test_names_of_any_letters_survive(tmp_path: Path) -> None:
    name = 'Torch.é"\\\x1b运.0.forward'
    content = render(write_rank(tmp_path, {name: forward()}))
    assert content["ranks"][0]["records"][0]["record"] == name


def test_a_value_nested_without_end_is_cut() -> None:
    value: Any = 1.0
    for _ in range(5_000):
        value = [value]
    json.dumps(make_strict(value), allow_nan=False)
