"""One process against several ranks of which only statistics were recorded."""

from __future__ import annotations

import pytest

import tensorprobe
from tensorprobe.compare.result import Comparison
from tests.cli.command import run_here
from tests.compare.layout.case import (
    RIGHT,
    SMALL,
    STATISTICS,
    STATISTICS_RIGHT,
    STATISTICS_WRONG,
    WRONG,
    find_reference,
)
from tests.compare.layout.four import FOUR
from tests.compare.layout.recorded import Recorded

FOUND = {
    "tp.no_reduce": (
        "source",
        "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts whose sum over ranks 0, 1 is "
        "output.0 of Functional.linear.1.forward of the reference, but nothing has added them up.",
    ),
    "tp_turned.no_reduce": ("source", "Tensor.add.6.forward of ranks 0, 1 in block: its input.1 is one of 2 parts"),
    "tp.no_reduce_bfloat16": (
        "source",
        "between Tensor.add.6.forward of ranks 0, 1 in block and Tensor.pow.1.forward of ranks 0, 1 in block.after: "
        "there the difference is larger than rounding, and at the first of the two its input.1 is one of 2 parts",
    ),
    "tp_narrow.no_reduce": ("source", "between Tensor.add.6.forward of ranks 0, 1 in block and Tensor.pow.1.forward"),
    "tp_narrow.stale": ("unequal start", "block.after.weight of rank 1 is neither the reference's"),
    "tp.no_copy": ("source", "gradient of head.norm.weight on ranks 0, 1 is not: each of ranks 0, 1 has only its own"),
    "tp.bias": ("source", "Functional.linear.3.forward of ranks 0, 1 in block.mlp"),
    "tp.offset": ("source", "Tensor.max.0.forward of ranks 0, 1 in head"),
    "tp.seed": ("random", "Functional.dropout.0.forward of rank 1 in block.dropout: it drew different random numbers."),
    "tp.stale": ("unequal start", "by its statistics, block.after.weight of rank 1 is neither the reference's"),
    "tp.kernel": ("source", "Functional.gelu.0.forward of ranks 0, 1 in block.mlp"),
    "sp.norm": ("source", "gradient of block.norm.weight on ranks 0, 1 is not: each of ranks 0, 1 has only its own"),
    "dtensor.partial": ("source", "Functional.linear.1.forward of ranks 0, 1"),
    "dp.twice": ("source", "on ranks 0, 1 is not: it is 0.5 times that of the reference"),
    "dp.data": ("source", "Functional.embedding.0.forward of ranks 0, 1 in embedding"),
    "fsdp2.half": ("source", "on ranks 0, 1 is not: it is 0.5 times that of the reference"),
    "fsdp2_l1": (
        "incomplete",
        "Statistics alone do not tell whether the two layouts agree: the gradient of 11 parameters",
    ),
    "fsdp2_l1.half": ("incomplete", "the gradient of 11 parameters is not in the dump"),
    "fsdp2_l1.data": ("source", "Functional.embedding.0.forward of ranks 0, 1 in embedding"),
    "ddp.stale": ("unequal start", "block.mlp.up of rank 1 is neither the reference's"),
    "accumulation.scale": (
        "source",
        "The loss of the candidate (the mean over ranks) is 2 times that of the reference",
    ),
    "cp.rotary": ("source", "Tensor.mul.2.forward of ranks 0, 1 in block.attention"),
    "ep.expert": ("source", "Tensor.split.0.forward of rank 1 in block.mlp"),
    "pp.micro": ("source", "Functional.cross_entropy.0.forward of rank 1 in head"),
    "tp4.few": ("source", "of the reference, and those of ranks 2, 3 are left out."),
    "tp4.stale": ("unequal start", "block.after.weight of rank 3 is neither the reference's"),
    "grid.no_reduce": ("source", "Functional.linear.1.forward of ranks 0, 1, 2, 3 in block.attention"),
    "grid.left_out": ("source", "gradient of head.norm.weight on ranks 0, 2 is not: each of ranks 0, 2 has only"),
}
SHORT = (*STATISTICS_RIGHT, *STATISTICS_WRONG)
LONG = tuple(name for name in (*RIGHT, *WRONG) if name not in (*SHORT, *SMALL))


def check(whole: Recorded, folder: Recorded, name: str) -> Comparison:
    found = tensorprobe.compare(whole / (find_reference(name) + STATISTICS), folder / (name + STATISTICS))
    kind, words = FOUND.get(name, ("agree", "The runs agree, as far as statistics tell."))
    assert found.verdict.kind == kind, str(found)
    assert words in found.verdict.headline
    assert any("the tensors were not recorded" in line for line in found.verdict.evidence)
    return found


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.some(2)
def test_statistics_of_two_ranks_are_held_against_those_of_one_process(
    name: str, whole: Recorded, two: Recorded
) -> None:
    check(whole, two, name)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_statistics_of_more_layouts_of_two_ranks(name: str, whole: Recorded, two: Recorded) -> None:
    check(whole, two, name)


@pytest.mark.long
@pytest.mark.parametrize("name", FOUR)
def test_statistics_of_four_ranks(name: str, whole: Recorded, four: Recorded) -> None:
    check(whole, four, name)


@pytest.mark.long
@pytest.mark.parametrize("pair", [("fsdp2", "tp4"), ("pp", "grid"), ("tp", "cp4")])
def test_statistics_of_two_layouts_of_several_ranks_agree(pair: tuple[str, str], two: Recorded, four: Recorded) -> None:
    found = tensorprobe.compare(two / (pair[0] + STATISTICS), four / (pair[1] + STATISTICS))
    assert found.verdict.kind == "agree", str(found)


def test_the_reference_may_have_tensors(whole: Recorded, two: Recorded) -> None:
    found = tensorprobe.compare(whole / "whole", two / f"tp{STATISTICS}")
    assert found.verdict.kind == "agree", str(found)


def test_the_command_ends_with_0_and_says_how_it_was_compared(
    whole: Recorded, two: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "compare", whole / f"whole{STATISTICS}", two / f"tp{STATISTICS}")
    assert done.returncode == 0, done.stdout
    assert "compared by statistics" in " ".join(done.stdout.split())
