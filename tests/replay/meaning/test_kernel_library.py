"""Fused norms, softmaxes, gates, rotations, losses and products, against functions of torch or plain formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.replay.meaning.formula import call_meaning, draw, is_near

X, WEIGHT, BIAS = draw(3, 5, 8), draw(8, seed=1), draw(8, seed=2)
NORMS = {
    "FusedLayerNormAffineFunction": ((X, WEIGHT, BIAS, (8,), 1e-5, False), F.layer_norm(X, (8,), WEIGHT, BIAS, 1e-5)),
    "FusedLayerNormFunction": ((X, (5, 8), 1e-5), F.layer_norm(X, (5, 8), eps=1e-5)),
    "FastLayerNormFN": ((X, WEIGHT, BIAS, 1e-5), F.layer_norm(X, (8,), WEIGHT, BIAS, 1e-5)),
    "FusedRMSNormAffineFunction": ((X, WEIGHT, (8,), 1e-5), F.rms_norm(X, (8,), WEIGHT, 1e-5)),
    "FusedRMSNormFunction": ((X, (8,), 1e-5, True), F.rms_norm(X, (8,), None, 1e-5)),
    "LigerRMSNormFunction": ((X, WEIGHT, 1e-6, 1.0, "gemma", True), F.rms_norm(X, (8,), WEIGHT + 1, 1e-6)),
    "LigerLayerNormFunction": ((X, WEIGHT, BIAS, 1e-5), F.layer_norm(X, (8,), WEIGHT, BIAS, 1e-5)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_fused_norm_is_the_norm(name: str) -> None:
    args, expected = NORMS[name]
    assert is_near(call_meaning(f"Autograd.{name}", *args), expected)


def test_fused_softmaxes() -> None:
    scores, mask = draw(2, 3, 4, 4), draw(2, 1, 4, 4, seed=1) > 0.5
    mask[0, 0, 1] = True
    assert is_near(
        call_meaning("Autograd.ScaledSoftmax", scores, 0.5), (scores / 2).exp() / (scores / 2).exp().sum(-1, True)
    )
    sees = torch.ones(4, 4).tril()
    weights = (scores / 2).exp() * sees
    found = call_meaning("Autograd.ScaledUpperTriangMaskedSoftmax", scores.flatten(0, 1), 0.5)
    assert is_near(found.view(scores.shape), weights / weights.sum(-1, True))
    weights = (scores / 2).exp() * ~mask
    found = call_meaning("Autograd.ScaledMaskedSoftmax", scores, mask, 0.5)
    assert is_near(found, torch.nan_to_num(weights / weights.sum(-1, True)))


def test_fused_gates() -> None:
    first, second = X.chunk(2, -1)
    expected = first * torch.sigmoid(first) * second
    assert is_near(call_meaning("Autograd.SwiGLUFunction", X, False, False), expected)
    assert is_near(call_meaning("Autograd.SwiGLUFunction", first, second), expected)
    assert is_near(call_meaning("Autograd.BiasSwiGLUFunction", X - BIAS, BIAS, False, False), expected)
    assert is_near(call_meaning("Autograd.LigerSiLUMulFunction", first, second), expected)
    gelu = F.gelu(first, approximate="tanh") * second
    assert is_near(call_meaning("Autograd.LigerGELUMulFunction", first, second), gelu)
    one, two, three = draw(6, 8, seed=3), draw(6, 8, seed=4), draw(8, 6, seed=5)
    hidden = X @ one.T + draw(6)
    expected = (hidden * torch.sigmoid(hidden) * (X @ two.T)) @ three.T + BIAS
    assert is_near(call_meaning("Autograd._SwiGLUFusedFunc", X, one, draw(6), two, None, three, BIAS), expected)


def test_fused_rotations() -> None:
    query, key, angle = draw(2, 3, 5, 8), draw(2, 1, 5, 8, seed=1), draw(5, 4, seed=2)
    turn = torch.polar(torch.ones_like(angle), angle)

    def turn_halves(x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(x[..., :4], x[..., 4:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    cosine, sine = (torch.cat((part, part), -1)[None] for part in (turn.real, turn.imag))
    found = call_meaning("Autograd.LigerRopeFunction", query, key, cosine, sine)
    assert is_near(found[0], turn_halves(query)) and is_near(found[1], turn_halves(key))
    x = torch.cat((query.transpose(1, 2), draw(2, 5, 3, 2)), -1)  # two of ten are not turned
    found = call_meaning("Autograd.ApplyRotaryEmb", x, turn.real, turn.imag, False, False, 0, None, None)
    assert is_near(found, torch.cat((turn_halves(query).transpose(1, 2), x[..., 8:]), -1))
    pairs = torch.view_as_complex(x[..., :8].unflatten(-1, (4, 2)).contiguous()) * turn[:, None]
    found = call_meaning("Autograd.ApplyRotaryEmb", x, turn.real, turn.imag, True, False, 0, None, None)
    assert is_near(found[..., :8], torch.view_as_real(pairs).flatten(-2))
    with pytest.raises(NotImplementedError):
        call_meaning("Autograd.ApplyRotaryEmb", x, turn.real, turn.imag, True, False, torch.ones(2), None, None)


LOGITS, TARGET = draw(6, 9), torch.tensor([0, 3, -100, 8, 3, 1])


def write_out(logits: torch.Tensor, square_scale: float = 0.0) -> torch.Tensor:
    """The loss of each row."""
    rows = []
    for row, label in zip(logits, TARGET, strict=True):
        total = row.exp().sum().log()
        rows.append(total - row[label] + square_scale * total * total if label != -100 else torch.zeros(()).double())
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ((-100,), write_out(LOGITS).sum() / 5),
        ((None, -100, 0.0, 0.0, "sum", None, False), write_out(LOGITS).sum()),
        ((None, -100, 1e-2, 0.0, "mean", None, True), write_out(LOGITS, 1e-2).sum() / 5),
        ((None, -100, 0.0, 0.0, "none", 2.0, False), write_out(2 * torch.tanh(LOGITS / 2))),
        ((None, -100, 0.0, 0.1, "mean", None), F.cross_entropy(LOGITS, TARGET, label_smoothing=0.1)),
    ],
)
def test_the_loss_of_liger(rest: tuple[Any, ...], expected: torch.Tensor) -> None:
    assert is_near(call_meaning("Autograd.LigerCrossEntropyFunction", LOGITS, TARGET, *rest)[0], expected)
    weight = draw(9, 4, seed=3)
    x = torch.linalg.lstsq(weight, LOGITS.T).solution.T
    expected = call_meaning("Autograd.LigerCrossEntropyFunction", x @ weight.T, TARGET, *rest)[0]
    found = call_meaning("Autograd.LigerFusedLinearCrossEntropyFunction", x, weight, TARGET, None, *rest)[0]
    assert is_near(found, expected)


def test_the_losses_of_flash_attn_and_apex() -> None:
    found = call_meaning("Autograd.CrossEntropyLoss", LOGITS, TARGET, 0.0, 2.0, 1e-2, -100, False, None)
    assert is_near(found[0], write_out(2 * LOGITS, 1e-2))
    assert is_near(
        call_meaning("Autograd.CrossEntropyLoss", LOGITS, TARGET, None, 0.0, 1.0, 0.0, -100)[0], write_out(LOGITS)
    )
    labels = TARGET.clamp(min=0)
    expected = F.cross_entropy(LOGITS, labels, reduction="none") * (labels != 0)
    assert is_near(call_meaning("Autograd.SoftmaxCrossEntropyLoss", LOGITS, labels, 0.0, 0), expected)


ENDS = torch.tensor([4, 16], dtype=torch.int32)
FIRST, SECOND, GROUPS = draw(16, 8), draw(8, 16, seed=1), draw(2, 8, 8, seed=2)


@pytest.mark.parametrize(
    ("first", "second"), [(FIRST, GROUPS), (GROUPS, SECOND), (SECOND, FIRST), (GROUPS, GROUPS.flip(0))]
)
def test_a_product_of_groups_is_what_the_kernel_computes(first: torch.Tensor, second: torch.Tensor) -> None:
    ends = None if first.dim() == second.dim() == 3 else ENDS
    narrow = torch._grouped_mm(first.bfloat16(), second.bfloat16(), offs=ends)
    found = call_meaning("Torch._grouped_mm", first.bfloat16().double(), second.bfloat16().double(), offs=ends)
    assert found.shape == narrow.shape
    assert torch.allclose(found, narrow.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("is_of_rows", [False, True])
def test_a_product_of_scaled_float8_is_what_the_kernel_computes(is_of_rows: bool) -> None:
    first, second = draw(16, 32).to(torch.float8_e4m3fn), draw(16, 32, seed=1).to(torch.float8_e4m3fn).T
    scales = (torch.rand(16, 1), torch.rand(1, 16)) if is_of_rows else (torch.tensor(0.5), torch.tensor(0.25))
    narrow = torch._scaled_mm(first, second, *scales, out_dtype=torch.bfloat16)
    wide = [tensor.double() for tensor in (first, second, *scales)]
    found = call_meaning("Torch._scaled_mm", *wide, out_dtype=torch.float64)
    assert torch.allclose(found, narrow.double(), rtol=1e-2, atol=1e-2)
    found = call_meaning("Torch._scaled_mm_v2", wide[0], wide[1], [wide[2]], [0], [0], [wide[3]], [0], [0], None)
    assert torch.allclose(found, narrow.double(), rtol=1e-2, atol=1e-2)
    with pytest.raises(NotImplementedError, match="blocks"):
        call_meaning("Torch._scaled_mm", wide[0], wide[1], draw(16, 2), draw(2, 16))
