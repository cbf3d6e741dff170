"""The comparison for programs: strict JSON, whatever is in it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.result import Comparison
from tensorprobe.compare.row import COLUMNS, iter_blocks
from tensorprobe.report.compare_json import iter_compare_json
from tensorprobe.report.compare_summary import summarize
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


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def render(found: Comparison) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        "".join(iter_compare_json(summarize(found), iter_blocks(found))), parse_constant=refuse
    )
    return content


def test_everything_is_in_it() -> None:
    content = render(gelu_fault())
    assert (content["reference"], content["candidate"], content["agree"]) == ("good", "bad", False)
    assert content["verdict"]["kind"] == "source"
    assert content["verdict"]["headline"] == "The runs part at Functional.gelu.0.forward in blocks.0."
    assert len(content["verdict"]["evidence"]) == 3
    assert content["verdict"]["call"]["reference"] == ["Functional.gelu.0.forward"]
    assert content["verdict"]["call"]["reference_location"] == "/x/model.py:18 in forward: y = F.gelu(x)"
    assert content["circumstances"][0] == {"key": "settings.threads", "reference": 2, "candidate": 1, "places": []}
    assert content["counts"]["tensors"] == {"equal": 4, "different": 2}
    assert content["counts"]["arguments"] == {"different": 1}
    assert content["counts"]["calls"] == {"source": 1, "entered": 1, "propagated": 1, "clean": 1}
    assert content["coverage"]["share"] == 0.9
    assert content["coverage"]["unseen_candidate"] == {"compiled region": 2}
    assert content["sources"][0]["because"] == "called with p=0.1 where the reference had 0.0"
    assert content["unpaired"][0]["nearest"] == "Tensor.add.6.forward"
    assert [one["side"] for one in content["unpaired"]] == ["reference", "candidate"]
    assert content["problems"] == ["candidate: its last line was cut off"]
    assert content["ranks"][0]["verdict"]["kind"] == "source"
    assert len(content["rows"]) == 9
    assert set(content["rows"][0]) == set(COLUMNS)
    assert content["rows"][3]["reference_shape"] == [2, 3]


def test_steps_and_ranks_are_a_matrix() -> None:
    found = comparison(rank_result(rank="rank0"), rank_result(call_result(role="source"), step=1, rank="rank1"))
    assert render(found)["matrix"] == {
        "steps": [0, 1],
        "ranks": ["rank0", "rank1"],
        "kinds": [["agree", None], [None, "source"]],
    }


def test_numbers_that_json_lacks_are_strings() -> None:
    measurement = Measurement("tensor", cosine=math.nan, max_abs_error=math.inf, worst_reference=1 - 2j, max_ulp=2**64)
    values = (pair(tensor(), tensor(min=-math.inf), "different", measurement=measurement, error=math.nan),)
    row = render(comparison(rank_result(call_result(values=values))))["rows"][0]
    assert (row["cosine"], row["max_abs_error"], row["candidate_min"]) == ("NaN", "Infinity", "-Infinity")
    assert (row["worst_reference"], row["max_ulp"], row["error"]) == ("(1-2j)", 2**64, "NaN")


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_names_of_any_letters_survive(name: str) -> None:
    text = "".join(iter_compare_json(summarize(hostile(name)), iter_blocks(hostile(name))))
    assert text.isascii()
    content = json.loads(text, parse_constant=refuse)
    assert content["verdict"]["headline"] == name
    assert content["rows"][0]["reference_dtype"] == name


def test_it_comes_in_pieces() -> None:
    found = comparison(rank_result(*(call_result() for _ in range(100))))
    assert max(map(len, list(iter_compare_json(summarize(found), iter_blocks(found)))[2:])) < 5_000
