"""Two real runs as a page: what executing them again showed, both source lines, the region that differs, tensors."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tensorprobe
from tensorprobe.compare.result import Comparison
from tensorprobe.report.page.comparison import build_comparison_page
from tests.cli.command import run_here
from tests.integration.fused_case import Weights
from tests.integration.test_truth_inside import compare, fused_convolution, record, written_convolution


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """One call against several, one of which has a mistake."""
    folder = tmp_path_factory.mktemp("runs")
    compare(folder, fused_convolution, partial(written_convolution, fault="flip"))
    return tensorprobe.compare(folder / "reference", folder / "candidate", by="truth", own_errors=True)


@pytest.fixture(scope="module")
def page(found: Comparison) -> dict[str, Any]:
    return build_comparison_page(found)


def nodes(page: dict[str, Any], side: str, kind: str) -> list[dict[str, Any]]:
    return [node for node in page["graph"]["nodes"] if node["side"] == side and node["kind"] == kind]


def program(model: Weights, x: torch.Tensor, slope: float = 0.1, beta: float = 1.0) -> torch.Tensor:
    hidden = F.leaky_relu(x @ model.query, slope)
    return F.softplus(hidden @ model.out, beta).mean()


def test_the_verdict_says_how_much_of_the_loss_it_explains_and_ranks_what_else_differs(tmp_path: Path) -> None:
    found = compare(tmp_path, program, partial(program, slope=0.6, beta=0.9))
    page = build_comparison_page(found)
    verdict = page["verdict"]
    assert verdict["effect"] is not None and verdict["effect"] == found.verdict.effect < 1
    assert f"the loss is {verdict['loss']['reference']} in the reference" in verdict["evidence"][0]
    assert f"and {verdict['loss']['candidate']} in the candidate" in verdict["evidence"][0]
    assert verdict["sides"]["candidate"]["calls"] == ["Functional.leaky_relu.0.forward"]
    (other,) = page["others"]
    assert other["name"] == "Functional.softplus.0.forward"
    assert other["call"] is not None and other["because"]


def test_both_sides_come_with_their_source_lines_and_stacks(page: dict[str, Any]) -> None:
    sides = page["verdict"]["sides"]
    for side, line in (("reference", "return (F.conv1d("), ("candidate", "windows = x.unfold(1, 3, 1)")):
        source = sides[side]["source"]
        assert source["file"] == "test_truth_inside.py"
        assert line in source["lines"][source["line"] - source["first"]]
        assert len(source["lines"]) == 11
        assert any("test_truth_inside.py" in frame for frame in sides[side]["stack"])


def test_a_region_of_several_calls_against_one_is_seen_as_such(page: dict[str, Any]) -> None:
    assert page["verdict"]["sides"]["reference"]["calls"] == ["Functional.conv1d.0.forward"]
    named = page["verdict"]["sides"]["candidate"]["calls"]
    assert named[0] == "Tensor.unfold.0.forward" and named[-1] == "Tensor.add.0.forward" and len(named) >= 3
    one = [node["name"] for node in nodes(page, "reference", "call") if node["state"] == "source"]
    several = [node["name"] for node in nodes(page, "candidate", "call") if node["state"] == "source"]
    assert (one, sorted(several)) == (["Functional.conv1d.0.forward"], sorted(named))


def test_the_graph_flows_to_the_right_and_joins_what_is_held_against_each_other(page: dict[str, Any]) -> None:
    graph = page["graph"]
    columns = {node["id"]: node["column"] for node in graph["nodes"]}
    assert all(columns[edge["from"]] < columns[edge["to"]] for edge in graph["edges"])
    cells = [(node["side"], node["column"], node["row"]) for node in graph["nodes"]]
    assert len(cells) == len(set(cells))
    by_number = {node["id"]: node for node in graph["nodes"]}
    assert graph["joins"]
    for join in graph["joins"]:
        first, second = by_number[join["reference"]], by_number[join["candidate"]]
        assert (first["side"], second["side"], first["kind"]) == ("reference", "candidate", "value")
        assert first["column"] == second["column"]
        assert first["state"] == second["state"] == join["state"]


def test_the_own_errors_of_both_runs_are_those_of_rounding(page: dict[str, Any]) -> None:
    for side in ("truth_reference", "truth_candidate"):
        known = [error for error in page["calls"][side] if error is not None]
        assert known and max(known) < 1e-5


def test_own_errors_are_looked_for_only_when_they_are_asked_for(tmp_path: Path) -> None:
    assert not compare(tmp_path, program, partial(program, slope=0.6)).ranks[0].truth_errors
    found = tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate", by="truth", own_errors=True)
    assert found.ranks[0].truth_errors["reference"]


def test_the_pairs_of_the_verdict_and_the_worst_ones_are_drawn(page: dict[str, Any]) -> None:
    rows, strings = page["rows"], page["strings"]
    assert 0 < len(page["details"]) <= 40
    statuses = {strings[rows["status_s"][int(number)]] for number in page["details"]}
    assert "different" in statuses
    for detail in page["details"].values():
        assert {"histogram", "heat", "metrics"} <= set(detail)
    json.dumps(page, allow_nan=False)


def read_rows(page: dict[str, Any]) -> dict[str, list[Any]]:
    """With texts in the place of their numbers."""
    texts = [*page["strings"], None]
    return {
        name: [texts[number] for number in column] if name.endswith("_s") else column
        for name, column in page["rows"].items()
    }


def test_without_the_dumps_there_are_no_stacks_and_no_tensors_and_all_else_stays(
    found: Comparison, page: dict[str, Any], tmp_path: Path
) -> None:
    moved = Comparison(str(tmp_path / "a"), str(tmp_path / "b"), found.ranks, found.verdict, found.problems)
    again = build_comparison_page(moved)
    assert again["details"] == {}
    assert again["verdict"]["sides"]["candidate"]["stack"] == []
    assert page["stacks"] and again["stacks"] == []
    assert again["graph"] == page["graph"]
    assert read_rows(again) == read_rows(page)


def test_truth_writes_a_page_with_the_digits_that_each_call_has_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dump, folder = record(tmp_path / "dump", program), tmp_path / "result"
    done = run_here(capfd, "truth", dump, "-o", folder)
    assert done.returncode == 0
    names = ["truth.csv", "truth.json", "report.html"]
    assert done.stdout.splitlines()[-3:] == [f"written: {folder / name}" for name in names]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    done = run_here(capfd, "truth", dump, "-o", folder, "--json")
    assert json.loads(done.stdout)["is_right"] is True
    assert done.stderr.count("written: ") == 3
