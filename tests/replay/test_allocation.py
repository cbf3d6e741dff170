"""A call says how much memory it takes before it is made, and is not made if that is too much."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tensorprobe.capture.torch.function import find_function
from tensorprobe.replay.allocation import Allocation, TooLargeError
from tensorprobe.replay.content_guard import UnsafeContentError, check_content
from tensorprobe.replay.meaning.registry import find_kernel_meaning
from tests.replay.meaning.formula import draw

LIMIT = 1 << 24
LARGE = 10**12


@dataclass
class Result:
    element_count: int


class Recorded:
    """A call as a dump has it."""

    def __init__(self, prefix: str, op: str, count: int) -> None:
        self.prefix, self.op, self.name = prefix, op, f"{prefix}.{op}.0.forward"
        self.outputs = [Result(count)]


def check(prefix: str, op: str, *args: Any, count: int = 100, **kwargs: Any) -> None:
    recorded: Any = Recorded(prefix, op, count)
    Allocation(LIMIT).check(recorded, find_function(prefix, op), args, kwargs)


LONG = torch.ones(1, dtype=torch.float64).expand(10**6)
INTEGERS = torch.tensor([1, 2, 3])
BOMBS: dict[str, tuple[Any, ...]] = {
    "zeros": ("Torch", "zeros", LARGE),
    "zeros on a device": ("Torch", "zeros", [10**6, 10**6]),
    "full": ("Torch", "full", (10**6, 10**6), 1.0),
    "arange": ("Torch", "arange", LARGE),
    "arange in small steps": ("Torch", "arange", 0, 1, 1e-12),
    "linspace": ("Torch", "linspace", 0, 1, LARGE),
    "eye": ("Torch", "eye", 10**6),
    "tril_indices": ("Torch", "tril_indices", 10**6, 10**6),
    "hann_window": ("Torch", "hann_window", LARGE),
    "vander": ("Torch", "vander", draw(3), 10**9),
    "cartesian_prod": ("Torch", "cartesian_prod", LONG, LONG),
    "kron": ("Torch", "kron", LONG, LONG),
    "outer": ("Torch", "outer", LONG, LONG),
    "diag": ("Torch", "diag", draw(10**4)),
    "diag_embed": ("Torch", "diag_embed", draw(2), 10**6),
    "cov": ("Torch", "cov", draw(10**4, 1)),
    "broadcasting": ("Torch", "add", draw(10**4, 1), draw(1, 10**4)),
    "matmul": ("Torch", "matmul", draw(10**4, 1), draw(1, 10**4)),
    "matmul on its way": ("Torch", "matmul", draw(10**3, 1, 1), draw(1, 10**4)),
    "embedding": ("Functional", "embedding", torch.zeros(10**4, dtype=torch.long), draw(1, 10**4)),
    "operator": ("Tensor", "__mod__", draw(10**4, 1), draw(1, 10**4)),
    "rand": ("Torch", "rand_like", draw(1).expand(10**9)),
    "einsum on its way": ("Torch", "einsum", "ab,cd,ac,bd->", *[draw(100, 100)] * 4),
    "cdist": ("Torch", "cdist", draw(10**4, 1), draw(10**4, 1)),
    "bincount": ("Torch", "bincount", INTEGERS, None, 10**9),
    "bincount by content": ("Torch", "bincount", torch.tensor([10**12])),
    "repeat_interleave": ("Torch", "repeat_interleave", INTEGERS, 10**9),
    "repeat_interleave by content": ("Torch", "repeat_interleave", torch.tensor([10**12])),
    "combined repeats": ("Tensor", "repeat_interleave", INTEGERS, torch.tensor([1, 10**12, 1])),
    "repeat": ("Tensor", "repeat", draw(2), 10**9),
    "tile": ("Torch", "tile", draw(2), (10**9,)),
    "contiguous of what is expanded": ("Tensor", "contiguous", draw(1).expand(10**9)),
    "sum of what is expanded": ("Tensor", "sum", draw(1).expand(10**6, 10**6)),
    "new_zeros": ("Tensor", "new_zeros", draw(1), [LARGE]),
    "resize_": ("Tensor", "resize_", draw(1), 10**9),
    "index by another size": ("Tensor", "__getitem__", draw(10**4, 10), torch.zeros(10**6, dtype=torch.long)),
    "rfft": ("Torch", "fft.rfft", draw(4), 10**10),
    "one_hot": ("Functional", "one_hot", INTEGERS, 10**9),
    "one_hot by content": ("Functional", "one_hot", torch.tensor([10**12])),
    "pad": ("Functional", "pad", draw(2), (10**9, 10**9)),
    "interpolate": ("Functional", "interpolate", draw(1, 1, 2), 10**9),
    "interpolate by scale": ("Functional", "interpolate", draw(1, 1, 2), None, 1e9),
    "conv": ("Functional", "conv1d", draw(1, 1, 2), draw(1, 1, 1), None, 1, 10**7),
    "fold": ("Functional", "fold", draw(1, 1, 1), (10**6, 10**6), 1, 1, 0, 10**6),
    "affine_grid": ("Functional", "affine_grid", draw(1, 2, 3), (1, 1, 10**6, 10**6)),
    "adaptive_avg_pool2d": ("Functional", "adaptive_avg_pool2d", draw(1, 1, 2, 2), (10**5, 10**5)),
    "pdist": ("Functional", "pdist", draw(10**4, 1)),
    "attention on its way": (
        "Functional",
        "scaled_dot_product_attention",
        draw(1, 1, 5000, 1),
        draw(1, 1, 5000, 1),
        draw(1, 1, 5000, 2),
    ),
    "aten": ("Ops", "aten.zeros.default", [LARGE]),
    "aten without overload": ("Ops", "aten.full", [LARGE], 1.0),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_call_that_would_take_too_much_is_not_made(name: str) -> None:
    with pytest.raises(TooLargeError, match=r"GiB|were recorded"):
        check(*BOMBS[name])


ENDLESS = {
    "window": ("Functional", "max_pool1d", draw(1, 1, 4), 1 << 40, 1, 1 << 39),
    "average": ("Functional", "avg_pool1d", draw(1, 1, 4), 1 << 40, 1, 1 << 39),
    "power": ("Torch", "matrix_power", draw(3, 3), -(2**63)),
    "terms": ("Torch", "mvlgamma", draw(3) + 10**12, 10**9),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_call_that_would_not_end_is_not_made(name: str) -> None:
    with pytest.raises(TooLargeError, match=r"it would take as many steps as -?[\d,]+, a number among its arguments"):
        check(*ENDLESS[name], count=10**6)


HARMLESS: list[tuple[Any, ...]] = [
    ("Torch", "zeros", 3, 4),
    ("Torch", "add", draw(3, 1), draw(1, 4)),
    ("Tensor", "masked_fill", draw(3, 4), draw(3, 4) > 0, -1e30),
    ("Functional", "pad", draw(2, 2), (1, 1), "constant", -(10**9)),
    ("Functional", "cross_entropy", draw(5, 7), torch.tensor([1, -100, 2, 3, 4])),
    ("Functional", "embedding", torch.tensor([[1, 2]]), draw(4, 5)),
    ("Functional", "conv2d", draw(1, 3, 5, 5), draw(2, 3, 3, 3), None, 1, 1),
    ("Functional", "scaled_dot_product_attention", draw(1, 2, 20, 4), draw(1, 2, 20, 4), draw(1, 2, 20, 4)),
    ("Tensor", "__getitem__", draw(5, 4), draw(5) > 0),
    ("Tensor", "__getitem__", draw(5, 4), (None, draw(5, 4) > 0)),
    ("Tensor", "__getitem__", draw(5, 4), (slice(None), None, Ellipsis, 2)),
    ("Torch", "nonzero", draw(5, 4) > 0),
    ("Torch", "where", draw(5, 4) > 0),
    ("Torch", "einsum", "bij,bjk->bik", draw(2, 3, 4), draw(2, 4, 5)),
    ("Ops", "aten.add", draw(3), 1),
    ("Ops", "aten.native_layer_norm", draw(3, 4), [4], None, None, 1e-5),
]


@pytest.mark.parametrize("call", HARMLESS, ids=lambda call: call[1])
def test_other_calls_are_made(call: tuple[Any, ...]) -> None:
    prefix, op, *args = call
    output = find_function(prefix, op)(*args)
    count = sum(tensor.numel() for tensor in (output if isinstance(output, tuple) else (output,)))
    check(prefix, op, *args, count=count)


TOKENS = draw(1, 1, 1, 1).expand(1, 3000, 1, 1)
ENDS = torch.tensor([0, 3000], dtype=torch.int32)
KERNELS = {
    "FlashAttnFunc": (TOKENS, TOKENS, TOKENS, 0.0, None, True, (-1, -1), 5.0, None, False, False),
    "FlashAttnVarlenFunc": (*[TOKENS[0]] * 3, ENDS, ENDS, 1, 1, 0.0, None, True, (-1, -1), 5.0, None, False, False),
    "LigerFusedLinearCrossEntropyFunction": (draw(3000, 1), draw(3000, 1), torch.zeros(3000, dtype=torch.long), None),
}


@pytest.mark.parametrize("name", KERNELS)
def test_so_is_a_kernel_whose_meaning_would_take_too_much(name: str) -> None:
    found = find_kernel_meaning("Autograd", name)
    recorded: Any = Recorded("Autograd", name, 3000)
    assert found is not None
    with pytest.raises(TooLargeError, match="GiB"):
        Allocation(LIMIT).check_kernel(recorded, found.function, KERNELS[name], {})
    Allocation(1 << 32).check_kernel(recorded, found.function, KERNELS[name], {})


def test_a_result_that_is_larger_than_recorded_is_told_apart_from_one_that_is_too_large() -> None:
    with pytest.raises(TooLargeError, match="it gives 12 elements, and 3 were recorded"):
        check("Torch", "zeros", 3, 4, count=3)
    with pytest.raises(TooLargeError, match="it gives 12 elements, and 3 were recorded"):
        check("Functional", "linear", torch.ones(3, 6), torch.ones(4, 6), count=3)
    with pytest.raises(TooLargeError, match=r"its results take 7\.5 GiB, and 0\.0 GiB are the limit \(--memory\)"):
        check("Torch", "zeros", 10**9, count=10**9)


def test_nothing_is_allocated_while_a_call_is_tried() -> None:
    seen: list[torch.device] = []
    original = torch.zeros

    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = original(*args, **kwargs)
        seen.append(made.device)
        return made

    recorded: Any = Recorded("Torch", "zeros", 12)
    Allocation(LIMIT).check(recorded, zeros, (3, 4), {"device": torch.device("cpu")})
    assert seen == [torch.device("meta")]


SCORES = torch.randn(5, 2, 4).log_softmax(-1)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("ctc_loss", (SCORES, torch.full((2, 3), -(10**6)), torch.tensor([5, 5]), torch.tensor([3, 3]))),
        ("ctc_loss", (SCORES, torch.full((2, 3), 4), torch.tensor([5, 5]), torch.tensor([3, 3]))),
        ("ctc_loss", (SCORES, torch.ones(3, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([2, 10**6]))),
        ("ctc_loss", (SCORES, torch.ones(2, 3, dtype=torch.long), (5, 6), (3, 3))),
        ("_pack_padded_sequence", (draw(3, 2, 4), torch.tensor([10**6, 1]), False)),
        ("_fused_adam_", ([draw(9)], [draw(2)], [draw(9)], [draw(9)], [], [draw(1)])),
        ("_fused_sgd_", ([draw(9)], [draw(9)], [draw(1)])),
        ("_fused_adam_", (3,)),
    ],
)
def test_a_kernel_that_trusts_its_arguments_is_not_given_wrong_ones(op: str, args: Any) -> None:
    with pytest.raises(UnsafeContentError, match=op):
        check_content(op, args, {})


def test_it_is_given_right_ones() -> None:
    check_content(
        "ctc_loss", (SCORES, torch.ones(2, 3, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([3, 2])), {}
    )
    check_content("ctc_loss", (SCORES, torch.ones(5, dtype=torch.long), (5, 5), (3, 2)), {})
    check_content("_pack_padded_sequence", (draw(3, 2, 4), torch.tensor([3, 1]), False), {})
    states = [[draw(9), draw(1)] for _ in range(4)]
    check_content("_fused_adam_", (*states, [], [draw(1), draw(1)]), {})
    check_content("_fused_sgd_", (states[0], states[1], []), {})


def test_calls_of_the_same_shapes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of a model: what one of them takes, the others take, too; another argument or shape is tried anew."""
    tried: list[Any] = []
    allocation = Allocation(1 << 30)
    attempt = allocation._try
    monkeypatch.setattr(allocation, "_try", lambda *call: (tried.append(call), attempt(*call))[1])
    for number, (rows, columns) in enumerate([(3, 4), (3, 4), (5, 4), (3, 2), (3, 4)]):
        recorded: Any = Recorded("Torch", "kron", rows * columns)
        recorded.name = f"Torch.kron.{number}.forward"
        allocation.check(recorded, torch.kron, (torch.ones(rows), torch.ones(columns)), {})
    assert len(tried) == 3


def test_what_most_steps_are_made_of_needs_no_compiler_to_be_tried() -> None:
    program = """
import sys, torch
from tests.replay.test_allocation import check
check("Functional", "linear", torch.ones(3, 6), torch.ones(4, 6), torch.ones(4))
check("Torch", "matmul", torch.ones(3, 6), torch.ones(6, 4))
check("Torch", "cat", [torch.ones(3), torch.ones(4)])
check("Functional", "embedding", torch.tensor([[1, 2]]), torch.ones(4, 5))
check("Functional", "conv1d", torch.ones(1, 2, 9), torch.ones(3, 2, 3), None, 1, 1)
check("Functional", "logsigmoid", torch.ones(3))
check("Torch", "arange", 0, 9, 2)
check("Torch", "diff", torch.ones(3, 4))
check("Torch", "polar", torch.ones(3), torch.ones(3))
check("Functional", "unfold", torch.ones(1, 2, 4, 4), 2)
check("Functional", "one_hot", torch.tensor([1, 2]))
check("Tensor", "masked_select", torch.ones(3), torch.ones(3) > 0)
check("Torch", "einsum", "ab,bc->ac", torch.ones(2, 3), torch.ones(3, 4))
check("Tensor", "__getitem__", torch.ones(3, 4), (slice(None), torch.tensor([1, 2])))
for op in ("__and__", "__xor__"):
    check("Tensor", op, torch.ones(3, dtype=torch.bool), torch.ones(2, 1, dtype=torch.bool))
for op in ("__floordiv__", "__mod__", "__rtruediv__"):
    check("Tensor", op, torch.ones(3), 2)
check("Tensor", "__invert__", torch.ones(3, dtype=torch.bool))
print({"torch._dynamo", "torch.fx.experimental.symbolic_shapes"} & sys.modules.keys())
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"
