"""Kernels of Ascend devices, against what their manual says, written out. No such device was at hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.replay.meaning.formula import attend_slowly, call_meaning, draw, is_near

QUERY, KEY, VALUE = draw(2, 5, 4, 8, seed=1), draw(2, 7, 2, 8, seed=2), draw(2, 7, 2, 8, seed=3)
LAYOUTS = {
    "BSND": lambda tensor: tensor,
    "BNSD": lambda tensor: tensor.transpose(1, 2),
    "BSH": lambda tensor: tensor.flatten(2),
    "SBH": lambda tensor: tensor.flatten(2).transpose(0, 1),
}


def attend(layout: str = "BSND", *unnamed: Any, **options: Any) -> torch.Tensor:
    place = LAYOUTS[layout]
    results = call_meaning(
        "NPU.npu_fusion_attention", place(QUERY), place(KEY), place(VALUE), 4, layout, *unnamed, **options
    )
    assert len(results) == 7
    return results[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_in_every_layout(layout: str) -> None:
    expected = torch.from_numpy(attend_slowly(QUERY, KEY, VALUE, 0.3))
    assert is_near(attend(layout, scale=0.3), LAYOUTS[layout](expected))
    assert is_near(attend(layout, None, None, None, 0.3), LAYOUTS[layout](expected))


@pytest.mark.parametrize("mode", [0, 1])
def test_a_mask_hides_where_it_is_true(mode: int) -> None:
    mask = draw(5, 7) > 1
    expected = attend_slowly(QUERY, KEY, VALUE, 0.3, lambda i, j: not mask[i, j])
    assert is_near(attend(scale=0.3, atten_mask=mask, sparse_mode=mode), expected)


@pytest.mark.parametrize(
    ("options", "sees"),
    [
        ({"sparse_mode": 2}, lambda i, j: j <= i),
        ({"sparse_mode": 3}, lambda i, j: j <= i + 2),
        ({"sparse_mode": 4, "pre_tockens": 2, "next_tockens": 1}, lambda i, j: i + 2 - 2 <= j <= i + 2 + 1),
    ],
    ids=["first sees first", "last sees last", "band"],
)
def test_the_modes_that_come_with_a_compressed_mask(options: dict[str, int], sees: Any) -> None:
    compressed = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    assert is_near(attend(scale=0.3, atten_mask=compressed, **options), attend_slowly(QUERY, KEY, VALUE, 0.3, sees))


def test_a_bias_is_added_before_the_scale() -> None:
    bias = draw(1, 4, 5, 7)
    expected = attend_slowly(
        QUERY, KEY, VALUE, 0.3, change=lambda score, b, h, i, j: score + 0.3 * float(bias[0, h, i, j])
    )
    assert is_near(attend(scale=0.3, pse=bias), expected)


@pytest.mark.parametrize(
    "options", [{"keep_prob": 0.9}, {"sparse_mode": 7}, {"prefix": [1]}, {"padding_mask": draw(1)}]
)
def test_what_the_record_or_the_manual_does_not_tell_is_not_guessed(options: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError):
        attend(**options)


def test_rms_norm_and_what_it_returns() -> None:
    x, gamma, other = draw(3, 4, 6), draw(4, 6, seed=1), draw(3, 4, 6, seed=2)
    root = 1 / torch.sqrt((x * x).mean((1, 2)) + 1e-5)
    result, scale = call_meaning("NPU.npu_rms_norm", x, gamma, 1e-5)
    assert is_near(result, F.rms_norm(x, (4, 6), gamma, 1e-5)) and is_near(scale, root.view(3, 1, 1))
    result, scale, total = call_meaning("NPU.npu_add_rms_norm", x, other, gamma, 1e-5)
    assert is_near(total, x + other) and is_near(result, F.rms_norm(x + other, (4, 6), gamma, 1e-5))


def test_a_gate_of_two_halves() -> None:
    x = draw(3, 8)
    assert is_near(call_meaning("NPU.npu_swiglu", x), x[:, :4] * torch.sigmoid(x[:, :4]) * x[:, 4:])
    assert is_near(call_meaning("NPU.npu_swiglu", x.T, dim=0), (x[:, :4] * torch.sigmoid(x[:, :4]) * x[:, 4:]).T)


def test_rotation_is_a_product_of_complex_numbers() -> None:
    x, angle = draw(2, 3, 5, 8), draw(5, 4, seed=1)
    turn = torch.polar(torch.ones_like(angle), angle)
    neighbours = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn).flatten(-2)
    cosine, sine = (part.repeat_interleave(2, -1) for part in (turn.real, turn.imag))
    assert is_near(call_meaning("NPU.npu_rotary_mul", x, cosine, sine, "interleave"), neighbours)
    halves = torch.complex(x[..., :4], x[..., 4:]) * turn
    cosine, sine = (torch.cat((part, part), -1) for part in (turn.real, turn.imag))
    assert is_near(call_meaning("NPU.npu_rotary_mul", x, cosine, sine), torch.cat((halves.real, halves.imag), -1))
