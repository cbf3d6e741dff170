"""What is said where statistics do not tell enough."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from tensorprobe.compare.layout.statistic.judge import judge_summaries
from tensorprobe.compare.layout.statistic.step import SummaryRank, read_summary_ranks
from tensorprobe.compare.layout.statistic.verdict import SummaryWords
from tensorprobe.compare.result import Verdict
from tensorprobe.store.reader import open_dump
from tests.compare.layout.case import STATISTICS
from tests.compare.layout.recorded import Recorded


def read(folder: Path) -> dict[int, SummaryRank]:
    return read_summary_ranks(open_dump(folder).steps[0].ranks)


def judge(reference: dict[int, SummaryRank], candidate: dict[int, SummaryRank]) -> Verdict:
    return SummaryWords(judge_summaries(reference, candidate), {}).give_verdict()


def test_a_gradient_that_was_not_recorded_is_not_taken_as_equal(whole: Recorded, two: Recorded) -> None:
    candidate = read(two / f"tp{STATISTICS}")
    del candidate[1].gradients["head.weight"]
    verdict = judge(read(whole / f"whole{STATISTICS}"), candidate)
    assert verdict.kind == "incomplete"
    assert "the gradient of 1 parameter is not in the dump, or only in shares (head.weight)" in verdict.headline
    assert "Record with task tensor or replay." in verdict.headline


def test_without_any_gradients_it_is_said_that_they_were_not_judged(whole: Recorded, two: Recorded) -> None:
    reference, candidate = read(whole / f"whole{STATISTICS}"), read(two / f"tp{STATISTICS}")
    for rank in (*reference.values(), *candidate.values()):
        rank.gradients.clear()
    verdict = judge(reference, candidate)
    assert verdict.kind == "agree"
    assert "not judged: parameter gradients, which were not recorded (record at level mix)" in verdict.evidence


def test_a_parameter_that_the_reference_has_nothing_like_is_not_taken_as_equal(whole: Recorded, two: Recorded) -> None:
    candidate = read(two / f"tp{STATISTICS}")
    del candidate[1].parameters["head.weight"]
    verdict = judge(read(whole / f"whole{STATISTICS}"), candidate)
    assert verdict.kind == "incomplete"
    assert "the reference has nothing of the size of 1 parameter (head.weight)" in verdict.headline


def test_without_a_loss_nothing_is_said_to_agree(whole: Recorded, two: Recorded) -> None:
    reference, candidate = read(whole / f"whole{STATISTICS}"), read(two / f"tp{STATISTICS}")
    for value in (value for rank in candidate.values() for value in rank.rank.step.values):
        value.is_root = False
    verdict = judge(reference, candidate)
    assert (verdict.kind, "there is no loss in both runs" in verdict.headline) == ("incomplete", True)


def test_a_loss_that_is_nan_is_not_the_same(whole: Recorded, two: Recorded, tmp_path: Path) -> None:
    shutil.copytree(two / f"tp{STATISTICS}", tmp_path / "nan")
    for file in (tmp_path / "nan").rglob("dump.json"):
        content = json.loads(file.read_text())
        (record,) = (one for name, one in content["data"].items() if name == "Tensor.mean.3.forward")
        record["output"][0] |= dict.fromkeys(("Max", "Min", "Mean", "Norm"), math.nan)
        file.write_text(json.dumps(content))
    verdict = judge(read(whole / f"whole{STATISTICS}"), read(tmp_path / "nan"))
    assert verdict.kind == "source"
    assert "is nan times that of the reference" in verdict.headline


def test_shares_of_a_gradient_in_the_reference_are_not_taken_for_parts(two: Recorded) -> None:
    reference = read(two / f"tp{STATISTICS}")
    reference[1].gradients["head.norm.weight"] = reference[1].gradients["block.norm.weight"]
    verdict = judge(reference, read(two / f"fsdp2{STATISTICS}"))
    assert (verdict.kind, "(head.norm.weight)" in verdict.headline) == ("incomplete", True)
