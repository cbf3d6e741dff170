"""The document of a comparison's page: strict JSON, each text once, each row where its call says it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.result import OtherDifference
from tensorprobe.compare.row import COLUMNS, build_rows
from tensorprobe.report.page.comparison import build_comparison_page
from tests.report.comparison import (
    FRAME,
    HOSTILE_NAMES,
    call,
    call_result,
    comparison,
    gelu_fault,
    hostile,
    pair,
    rank_result,
    tensor,
)

FROM_CALL = {
    *("step", "rank", "role", "because", "rule", "module_path", "direction", "caller"),
    *("reference_location", "candidate_location"),
}


def text(page: dict[str, Any], table: str, column: str) -> list[str | None]:
    """A column of texts, read as the page reads it."""
    return [None if number < 0 else page["strings"][number] for number in page[table][f"{column}_s"]]


def test_the_verdict_names_its_call_and_its_place() -> None:
    page = build_comparison_page(gelu_fault())
    verdict = page["verdict"]
    assert (page["version"], page["kind"], page["reference"], page["candidate"]) == (1, "comparison", "good", "bad")
    assert verdict["headline"] == "The runs part at Functional.gelu.0.forward in blocks.0."
    assert verdict["evidence"][0] == "its inputs agree: input.0 is equal"
    assert (verdict["kind"], verdict["agrees"], verdict["place"]) == ("source", False, 0)
    assert text(page, "calls", "name")[verdict["call"]] == "Functional.gelu.0.forward"
    assert verdict["sides"]["candidate"]["location"] == "/x/model.py:18 in forward: y = F.gelu(x)"
    assert verdict["sides"]["candidate"]["module"] == "blocks.0"
    assert (verdict["effect"], verdict["loss"]) == (None, None)


def test_calls_are_in_the_order_of_execution_with_their_errors() -> None:
    page = build_comparison_page(gelu_fault())
    assert text(page, "calls", "name") == [
        "Functional.linear.0.forward",
        "Functional.gelu.0.forward",
        "Functional.linear.1.forward",
        "Functional.dropout.3.forward",
    ]
    assert text(page, "calls", "role") == ["clean", "source", "propagated", "entered"]
    assert text(page, "calls", "operation") == ["linear", "gelu", "linear", "dropout"]
    assert page["calls"]["error"] == [None, 0.25, 0.25, None]
    assert page["calls"]["tolerance"][1] == 1.2e-6
    assert page["calls"]["input_error"] == [0.0, 0.0, 0.0, None]
    assert {len(column) for column in page["calls"].values()} == {4}


def test_every_row_is_where_its_call_says_and_unpaired_calls_have_none() -> None:
    ranks = (rank_result(call_result(), call_result("Torch.add.0.forward", "source"), step=0), gelu_fault().ranks[0])
    page = build_comparison_page(comparison(*ranks))
    rows, calls = page["rows"], page["calls"]
    for number, (first, count) in enumerate(zip(calls["first_row"], calls["row_count"], strict=True)):
        assert rows["call"][first : first + count] == [number] * count
        assert rows["place"][first : first + count] == [calls["place"][number]] * count
    assert rows["call"].count(-1) == 2
    assert page["places"] == ["step0/rank", "step0/rank"]


def test_rows_have_the_columns_of_the_table_and_empty_ones_are_left_out() -> None:
    found = gelu_fault()
    page = build_comparison_page(found)
    names = {name.removesuffix("_s") for name in page["rows"]} - {"call", "place", "module_path"}
    used = {name for name in COLUMNS if any(getattr(row, name) is not None for row in build_rows(found))}
    assert names == used - FROM_CALL
    assert text(page, "rows", "reference_name") == [row.reference_name for row in build_rows(found)]
    assert text(page, "rows", "status") == [row.status for row in build_rows(found)]
    assert page["rows"]["error"] == [row.error for row in build_rows(found)]
    assert text(page, "rows", "reference_shape")[0] == "[2, 3]"


def test_a_call_without_a_partner_has_its_module_in_its_row() -> None:
    lone = Unpaired(call("Tensor.add.7.forward", module_path="blocks.3"), None, "")
    page = build_comparison_page(comparison(rank_result(call_result(), only_candidate=(lone,))))
    assert text(page, "rows", "module_path")[-1] == "blocks.3"
    assert set(text(page, "rows", "module_path")[:-1]) == {None}


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_any_name_is_text_in_strict_json(name: str) -> None:
    page = build_comparison_page(hostile(name))
    again = json.loads(json.dumps(page, allow_nan=False))
    assert again == page
    assert name in page["strings"]
    assert page["verdict"]["headline"] == name


def test_numbers_that_json_lacks_are_words_and_large_integers_are_numbers() -> None:
    values = (
        pair(tensor("output.0", float("inf")), tensor("output.0", float("nan")), "different", error=float("nan")),
        pair(tensor("output.1", 2**60), tensor("output.1", 1 + 2j), "different", error=0.5, tolerance=0.1),
    )
    page = build_comparison_page(comparison(rank_result(call_result("f", "source", values=values))))
    json.dumps(page, allow_nan=False)
    assert page["rows"]["reference_max"] == ["Infinity", float(2**60)]
    assert page["rows"]["candidate_max"] == ["NaN", "(1+2j)"]
    assert page["calls"]["error"] == ["NaN"]  # it is larger than 0.5


def test_several_calls_that_stand_against_one_are_named_together() -> None:
    made = call_result("Functional.gelu.0.forward", "source")
    made.reference = (call("Torch.mul.0.forward"), *made.reference)
    page = build_comparison_page(comparison(rank_result(made)))
    assert text(page, "calls", "reference") == ["Torch.mul.0.forward + Functional.gelu.0.forward"]
    assert page["verdict"]["sides"]["reference"]["calls"] == ["Torch.mul.0.forward", "Functional.gelu.0.forward"]


def test_other_differences_are_ranked_by_what_they_do_to_the_loss() -> None:
    calls = [call_result(f"Torch.add.{number}.forward", "source", because=str(number)) for number in range(4)]
    rank = rank_result(*calls)
    verdict = rank.verdict
    others = (OtherDifference(calls[1], 0.1), OtherDifference(calls[2], 0.7))
    told = type(verdict)(**{**verdict.__dict__, "effect": 0.2, "losses": (3.5, 3.6), "others": others})
    page = build_comparison_page(comparison(rank, verdict=told))
    assert page["verdict"]["effect"] == 0.2
    assert page["verdict"]["loss"] == {"reference": 3.5, "candidate": 3.6}
    assert [(one["because"], one["effect"], one["error"]) for one in page["others"]] == [
        ("2", 0.7, 0.25),
        ("1", 0.1, 0.25),
        ("3", None, 0.25),
    ]


def test_a_call_that_only_one_run_makes_has_one_side() -> None:
    lone, own = call("Tensor.transpose.0.forward"), call_result()
    told = call_result("Tensor.transpose.0.forward", "source", reference_location=FRAME)
    told.reference = told.candidate = (lone,)
    rank = rank_result(own, only_reference=gelu_fault().ranks[0].only_reference)
    lonely = type(rank.only_reference[0])(lone, None, "")
    verdict = type(rank.verdict)("source", "One run transposes.", step=0, rank_name="step0/rank", call=told)
    rank = type(rank)(**{**rank.__dict__, "only_reference": (lonely,), "verdict": verdict})
    page = build_comparison_page(comparison(rank))
    assert page["verdict"]["call"] is None
    assert page["verdict"]["sides"]["candidate"] is None
    assert page["verdict"]["sides"]["reference"]["calls"] == ["Tensor.transpose.0.forward"]


def test_the_own_errors_of_both_runs_stand_beside_their_calls() -> None:
    rank = rank_result(call_result("a"), call_result("b", candidate_name="c"))
    errors = {"reference": {"a": 1e-7, "b": 2e-7}, "candidate": {"c": 3e-7}}
    page = build_comparison_page(comparison(type(rank)(**{**rank.__dict__, "truth_errors": errors})))
    assert page["calls"]["truth_reference"] == [1e-7, 2e-7]
    assert page["calls"]["truth_candidate"] == [None, 3e-7]


def test_steps_by_ranks_are_there_when_there_are_several() -> None:
    assert build_comparison_page(gelu_fault())["matrix"] is None
    ranks = [rank_result(call_result(role=role), step=step) for step, role in enumerate(("clean", "source"))]
    assert build_comparison_page(comparison(*ranks))["matrix"] == {
        "steps": [0, 1],
        "ranks": ["rank"],
        "kinds": [["agree"], ["source"]],
    }


def test_the_commands_show_the_calls_and_make_them_into_scripts() -> None:
    commands = {one["what"]: one["command"] for one in build_comparison_page(gelu_fault())["verdict"]["commands"]}
    assert commands == {
        "show the call of the reference": "tensorprobe show good --step 0 --filter Functional.gelu.0.forward",
        "show the call of the candidate": "tensorprobe show bad --step 0 --filter Functional.gelu.0.forward",
        "a script that repeats the call of the reference": (
            "tensorprobe repro good Functional.gelu.0.forward --step 0 -o repro_reference"
        ),
        "a script that repeats the call of the candidate": (
            "tensorprobe repro bad Functional.gelu.0.forward --step 0 -o repro_candidate"
        ),
    }


def test_a_name_that_cannot_be_typed_gives_no_script_and_cannot_leave_its_quotes() -> None:
    page = build_comparison_page(hostile("x'; rm -rf / #\n"))
    commands = [one["command"] for one in page["verdict"]["commands"]]
    assert commands and all(command.startswith("tensorprobe show ") and "\n" not in command for command in commands)
    assert all("'\"'\"'" in command for command in commands)


def test_runs_that_agree_have_a_page_without_a_region() -> None:
    page = build_comparison_page(comparison())
    assert page["graph"] is None
    assert page["verdict"]["agrees"] and page["verdict"]["call"] is None and page["verdict"]["commands"] == []
