"""One program in two layouts, recorded by real processes: right ones agree, and of wrong ones the place is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorprobe
from tensorprobe.compare.result import Comparison
from tests.cli.command import run_here
from tests.compare.layout.case import LONG_RIGHT, LONG_WRONG, SHORT_RIGHT, SHORT_WRONG, find_reference
from tests.compare.layout.four import FOUR
from tests.compare.layout.recorded import Recorded

FOUND = {
    "tp.no_reduce": ("source", "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts whose sum"),
    "tp.no_reduce_bfloat16": ("source", "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts"),
    "tp_turned.no_reduce": ("source", "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts"),
    "tp_narrow.no_reduce": ("source", "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts"),
    "tp_narrow.stale": ("unequal start", "block.after.weight of rank 1 is neither the reference's"),
    "tp.no_copy": ("source", "gradient of head.norm.weight on ranks 0, 1 is not: each of ranks 0, 1 has only its own"),
    "tp.bias": ("source", "Functional.linear.3.forward of ranks 0, 1 in block.mlp"),
    "tp.offset": (
        "entered",
        "Tensor.lt.1.forward of rank 1 in head: its input.1 is 13 on rank 1, whose part of output.0 of",
    ),
    "tp.seed": (
        "random",
        "Functional.dropout.0.forward of rank 1 in block.dropout: it drew different random numbers, and rank 0",
    ),
    "tp.kernel": (
        "source",
        "Both programs are equivalent, but in the candidate Functional.gelu.0.forward of rank 1 in block.mlp goes "
        "wrong: its result is not what it should be for its inputs (output.0).",
    ),
    "tp.stale": ("unequal start", "block.after.weight of rank 1 is neither the reference's"),
    "sp.norm": (
        "source",
        "gradient of block.norm.weight on ranks 0, 1 is not: each of ranks 0, 1 has only its own share",
    ),
    "dtensor.partial": ("source", "Autograd._FromTorchTensor.1.forward of ranks 0, 1: its input.0 is one of 2 parts"),
    "dp.twice": ("source", "gradient of head.weight on ranks 0, 1 is not: it is 0.5 times that of the reference"),
    "dp.data": ("unequal start", "ranks 0, 1 have the same part of input.0 of Functional.embedding.0.forward"),
    "fsdp2.half": ("source", "gradient of head.weight on ranks 0, 1 is not: it is 0.5 times that of the reference"),
    "fsdp2_l1.data": ("unequal start", "ranks 0, 1 have the same part of input.0 of Functional.embedding.0.forward"),
    "fsdp2_l1.half": ("incomplete", "the gradient of 11 parameters of ranks 0, 1 is not known: it is not in the dump"),
    "ddp.stale": ("unequal start", "block.mlp.up of rank 1 is neither the reference's"),
    "accumulation.scale": (
        "source",
        "The loss of the candidate (the mean over ranks) is 2 times that of the reference",
    ),
    "cp.rotary": (
        "entered",
        "Tensor.mul.3.forward of rank 1 in block.attention: its input.0 is [4:8] along dimension 0",
    ),
    "ep.expert": ("entered", "Functional.linear.3.forward of ranks 0, 1 in block.mlp: its input.1 is a part of"),
    "pp.micro": ("entered", "Functional.cross_entropy.0.forward of rank 1 in head: its input.0 is [0:2, 4:6"),
    "tp4.few": ("source", "it adds up 2 of the 4 parts of output.0 of Functional.linear.1.forward of the reference"),
    "tp4.stale": ("unequal start", "block.after.weight of rank 3 is neither the reference's"),
    "grid.no_reduce": ("source", "Tensor.add.6.forward of ranks 0, 1, 2, 3 in block: its input.1 is one of 2 parts"),
    "grid.left_out": ("source", "gradient of head.norm.weight on ranks 0, 1, 2, 3 is not: each of ranks 0, 2 has only"),
}
SHORT_RIGHT_PAIRS = (("fsdp2", "cp"), ("pp", "fsdp2"))
SHORT_WRONG_PAIRS = {
    ("fsdp2", "cp.rotary"): ("entered", "Tensor.mul.3.forward of rank 1 in block.attention: its input.0 is [4:8]"),
    ("fsdp2", "tp.stale"): ("unequal start", "block.after.weight of rank 1 is neither the reference's"),
    ("tp_bfloat16", "tp.no_reduce_bfloat16"): (
        "source",
        "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is output.0 of Functional.linear.1.forward of the "
        "reference, which adds it up over ranks 0, 1 (Distributed.all_reduce.1.forward), but here nothing has.",
    ),
}
RIGHT_PAIRS = (
    *(("tp", "dp"), ("dp", "tp"), ("tp", "sp"), ("fsdp2", "tp"), ("cp", "dp"), ("pp", "tp"), ("ddp", "fsdp2")),
    *(("tp", "tp_turned"), ("dp", "dp_turned"), ("accumulation", "tp"), ("tp", "accumulation")),
)
WRONG_PAIRS = {
    ("dp", "tp.no_reduce"): ("source", "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts"),
    ("tp", "tp_turned.no_reduce"): (
        "source",
        "its input.1 is output.0 of Functional.linear.1.forward of the reference",
    ),
    ("tp", "dp.twice"): ("source", "gradient of head.weight on ranks 0, 1 is not: it is 0.5 times"),
    ("tp", "dp.data"): ("unequal start", "ranks 0, 1 have the same part of input.0 of Tensor.lt.1.forward"),
    ("dp", "tp.no_copy"): ("source", "gradient of head.norm.weight on ranks 0, 1 is not: each of ranks 0, 1 has only"),
    ("tp", "sp.norm"): ("source", "gradient of block.norm.weight on ranks 0, 1 is not: each of ranks 0, 1 has only"),
    ("dp", "accumulation.scale"): ("source", "gradient of head.weight on ranks 0, 1 is not: it is 2 times"),
    ("fsdp2", "ddp.stale"): ("unequal start", "block.mlp.up of rank 1 is neither the reference's"),
    ("tp", "pp.micro"): ("source", "Tensor.flatten.0.forward of rank 1 in head"),
}


def check_right(whole: Recorded, folder: Recorded, name: str) -> Comparison:
    found = tensorprobe.compare(whole / find_reference(name), folder / name)
    assert found.verdict.kind == "agree", str(found)
    assert "one program in two layouts, 1 process against" in found.verdict.headline
    assert any(line.startswith("weights of the reference: ") for line in found.verdict.evidence)
    assert not any("not compared" in line or "not executed" in line for line in found.verdict.evidence)
    return found


def check_wrong(whole: Recorded, folder: Recorded, name: str) -> Comparison:
    found = tensorprobe.compare(whole / find_reference(name), folder / name)
    kind, words = FOUND[name]
    assert found.verdict.kind == kind, str(found)
    assert words in found.verdict.headline
    assert not found
    return found


@pytest.mark.parametrize("name", SHORT_RIGHT)
@pytest.mark.some(3)
def test_the_same_program_on_two_ranks_agrees_with_one_process(name: str, whole: Recorded, two: Recorded) -> None:
    check_right(whole, two, name)


@pytest.mark.parametrize("name", SHORT_WRONG)
@pytest.mark.some(2)
def test_of_a_mistake_on_two_ranks_the_place_is_named(name: str, whole: Recorded, two: Recorded) -> None:
    check_wrong(whole, two, name)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_RIGHT)
def test_more_layouts_of_two_ranks_agree(name: str, whole: Recorded, two: Recorded) -> None:
    check_right(whole, two, name)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_WRONG)
def test_more_mistakes_on_two_ranks_are_named(name: str, whole: Recorded, two: Recorded) -> None:
    check_wrong(whole, two, name)


@pytest.mark.long
@pytest.mark.parametrize("name", FOUR)
def test_four_ranks(name: str, whole: Recorded, four: Recorded) -> None:
    (check_wrong if name in FOUND else check_right)(whole, four, name)


@pytest.mark.long
@pytest.mark.parametrize("pair", [("fsdp2", "tp4"), ("pp", "grid"), ("cp", "fsdp2_4")])
def test_two_layouts_of_several_ranks_agree(pair: tuple[str, str], two: Recorded, four: Recorded) -> None:
    found = tensorprobe.compare(two / pair[0], four / pair[1])
    assert found.verdict.kind == "agree", str(found)
    assert "2 ranks against 4 ranks" in found.verdict.headline


@pytest.mark.parametrize("pair", SHORT_RIGHT_PAIRS)
@pytest.mark.some(2)
def test_two_layouts_of_two_ranks_agree(pair: tuple[str, str], two: Recorded) -> None:
    check_right_pair(two / pair[0], two / pair[1])


@pytest.mark.parametrize("pair", SHORT_WRONG_PAIRS)
@pytest.mark.some(3)
def test_of_a_mistake_in_one_of_two_layouts_of_two_ranks_the_place_is_named(
    pair: tuple[str, str], two: Recorded
) -> None:
    check_wrong_pair(two / pair[0], two / pair[1], *SHORT_WRONG_PAIRS[pair])


@pytest.mark.long
@pytest.mark.parametrize("pair", RIGHT_PAIRS)
def test_more_layouts_of_two_ranks_agree_with_each_other(pair: tuple[str, str], two: Recorded) -> None:
    first, second = (two / name for name in pair)
    check_right_pair(first, second)


@pytest.mark.long
@pytest.mark.parametrize("pair", WRONG_PAIRS)
def test_more_mistakes_in_one_of_two_layouts_are_named(pair: tuple[str, str], two: Recorded) -> None:
    first, second = (two / name for name in pair)
    check_wrong_pair(first, second, *WRONG_PAIRS[pair])


def check_right_pair(reference: Path, candidate: Path) -> None:
    found = tensorprobe.compare(reference, candidate)
    assert found.verdict.kind == "agree", str(found)
    assert "one program in two layouts, 2 ranks against 2 ranks" in found.verdict.headline
    assert found.verdict.evidence[-1].startswith("compared as two layouts: rank 0 ")


def check_wrong_pair(reference: Path, candidate: Path, kind: str, words: str) -> None:
    found = tensorprobe.compare(reference, candidate)
    assert found.verdict.kind == kind, str(found)
    assert words in found.verdict.headline
    assert found.verdict.evidence[-1].startswith("compared as two layouts: rank 0 ")


def test_two_runs_of_one_layout_are_compared_rank_by_rank(two: Recorded) -> None:
    found = tensorprobe.compare(two / "cp", two / "cp.rotary")
    assert found.verdict.headline == (
        "The runs first differ at Tensor.add.1.forward in module block.attention: called with input.1=0 where the "
        "reference had 4 (step0/rank1)."
    )


@pytest.mark.long
def test_in_one_layout_too_a_wrong_kernel_is_named_on_the_rank_that_has_it(two: Recorded) -> None:
    found = tensorprobe.compare(two / "tp", two / "tp.kernel")
    assert "in the candidate Functional.gelu.0.forward of rank 1 in block.mlp goes wrong" in found.verdict.headline
    assert any(line.startswith("at [") and ", correct " in line for line in found.verdict.evidence)


def test_a_bfloat16_copy_of_float32_weights_is_the_same_and_it_is_said(whole: Recorded, two: Recorded) -> None:
    found = check_right(whole, two, "tp_narrow")
    line = "precision: 11 tensors of the reference (weights, data) were rounded to the dtype of the candidate"
    assert line in found.verdict.evidence


def test_the_reference_may_have_the_ranks_and_the_candidate_be_one_process(whole: Recorded, two: Recorded) -> None:
    found = tensorprobe.compare(two / "fsdp2", whole / "whole")
    assert found.verdict.kind == "agree", str(found)
    assert "2 ranks against 1 process" in found.verdict.headline
    assert "weights of the reference: 11 whole" in found.verdict.evidence


def test_without_a_reference_truth_names_the_rank_whose_weights_are_stale(two: Recorded) -> None:
    first, second = tensorprobe.truth(two / "tp.stale").runs
    (finding,) = second.findings
    assert not first.findings
    assert finding.kind == "replica"
    assert finding.other == (
        "Rank 1 has something else than its peers (rank 0): block.after.weight (relative difference 0.01)"
    )


def test_of_ranks_with_parts_of_weights_truth_says_nothing(two: Recorded) -> None:
    assert not tensorprobe.truth(two / "tp_bfloat16").findings


@pytest.mark.long
def test_without_a_reference_truth_names_the_rank_with_another_dropout(two: Recorded) -> None:
    findings = tensorprobe.truth(two / "tp.seed").findings
    assert [finding.record for finding in findings] == ["Functional.dropout.0.forward"]
    assert findings[0].other.startswith("Rank 1 has something else than its peers (rank 0): output.0 of")


def test_the_command_says_what_became_of_the_weights_and_ends_with_0(
    whole: Recorded, two: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "compare", whole / "experts", two / "ep")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, text
    assert "the loss of the reference is the mean over ranks of the candidate (ranks 0, 1)" in text
    assert "weights of the reference: 8 the same on all ranks, 2 cut into parts" in text


def test_the_command_shows_the_line_of_the_mistake_and_ends_with_1(
    whole: Recorded, two: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "compare", whole / "whole", two / "cp.rotary")
    text = " ".join(done.stdout.split())
    assert done.returncode == 1, text
    assert "in rotate: return torch.cat([left * angles.cos()" in text
