"""One process against eight ranks with several kinds of parallelism at once."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorprobe
from tests.compare.layout.eight import EIGHT, find_eight_reference

FOUND = {
    "grid8.no_reduce": (
        "source",
        "Tensor.add.6.forward of ranks 0, 1, 2, 3, 4, 5, 6, 7 in block: its input.1 is one of 2",
    ),
    "grid8.no_copy": (
        "source",
        "gradient of head.norm.weight on ranks 0, 1, 2, 3, 4, 5, 6, 7 is not: each of ranks 0, 1",
    ),
    "grid8.left_out": (
        "source",
        "gradient of head.norm.weight on ranks 0, 1, 2, 3, 4, 5, 6, 7 is not: each of ranks 0, 2",
    ),
    "grid8.stale": ("unequal start", "block.after.weight of rank 7 is neither the reference's"),
    "grid8.twice": ("source", "gradient of head.weight on ranks 0, 1, 2, 3, 4, 5, 6, 7 is not: it is 0.25 times"),
    "grid8.data": ("unequal start", "ranks 0, 1, 2, 3 have the same part of input.0 of Functional.embedding.0.forward"),
    "wide8.few": ("source", "it adds up 2 of the 4 parts of output.0 of Functional.linear.1.forward of the reference"),
    "cp8.rotary": (
        "entered",
        "Tensor.mul.3.forward of ranks 1, 2, 3, 4, 5, 6, 7 in block.attention: its input.0 is [1:2] along dimension 0",
    ),
    "wide8.offset": ("entered", "Tensor.lt.1.forward of ranks 1, 2, 3, 5, 6, 7 in head: its input.1 is 7 on rank 1, "),
    "tp8.offset": ("entered", "its input.1 is 4 on rank 1, whose part of output.0 of Functional.linear.4.forward"),
    "tp8_dropout.seed": (
        "random",
        "Functional.dropout.0.forward of rank 5 in block.dropout: it drew different random numbers, and ranks 0, 1, 2,",
    ),
    "masked8.seed": (
        "random",
        "Torch.rand.0.forward of rank 5 in block.dropout: it drew different random numbers, and ranks 0, 1, 2, 3, 4,",
    ),
    "cp_dp8.rotary": (
        "entered",
        "Tensor.mul.3.forward of rank 6 in block.attention: its input.0 is [4:6] along dimension 0, [2:4] along",
    ),
    "ep8.expert": (
        "entered",
        "its input.1 is a part of output.0 of Tensor.unbind.0.forward of the reference, but there "
        "Functional.linear.3.forward takes it together with a different input.0 (here a part of ",
    ),
    "pp8.micro": (
        "entered",
        "of ranks 4, 5, 6, 7 in head: its input.0 is [0:1] along dimension 1, [0:12] along dimension 2 of output.0 of "
        "Functional.linear.4.forward of the reference, but further on input.0 of Tensor.lt.0.forward is "
        "[1:2] along dimension 1 of input.0 of Tensor.flatten.2.forward",
    ),
    "pp8.one_micro": ("entered", "Tensor.max.0.forward of ranks 6, 7 in head: its input.0 is [2:3] along dimension 1"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EIGHT)
def test_eight_ranks_agree_with_one_process_unless_one_is_wrong(name: str, eight: Path) -> None:
    found = tensorprobe.compare(eight / f"{find_eight_reference(name)} alone", eight / name)
    kind, words = FOUND.get(name, ("agree", "one program in two layouts, 1 process against 8 ranks"))
    assert found.verdict.kind == kind, str(found)
    assert words in found.verdict.headline
