"""Fused attention, against its documentation written out element by element, and against torch's own kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.replay.meaning.formula import attend_slowly, call_meaning, draw, is_near

QUERY, KEY, VALUE = draw(2, 5, 4, 8, seed=1), draw(2, 7, 2, 8, seed=2), draw(2, 7, 2, 8, seed=3)
SCALE = 8**-0.5
SLOPES = draw(4, seed=4).abs()
BEHIND = 7 - 5  # so far lies a query's own key


def flash(*rest: Any) -> Any:
    return call_meaning("Autograd.FlashAttnFunc", QUERY, KEY, VALUE, *rest)


def test_plain_attention_of_grouped_heads_with_its_default_scale() -> None:
    found = flash(0.0, None, False, (-1, -1), 0.0, None, False, False, True)[0]
    assert is_near(found, attend_slowly(QUERY, KEY, VALUE, SCALE))


def test_causal_attention_lets_the_last_query_see_the_last_key() -> None:
    expected = attend_slowly(QUERY, KEY, VALUE, 0.3, lambda i, j: j <= i + BEHIND)
    assert is_near(flash(0.0, 0.3, True, (-1, -1), 0.0, None, False, False, True)[0], expected)


def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient() -> None:
    query = draw(1, 7, 2, 8).requires_grad_()
    key, value = draw(1, 4, 2, 8, seed=5), draw(1, 4, 2, 8, seed=6)
    found = call_meaning("Autograd.FlashAttnFunc", query, key, value, 0.0, None, True, (-1, -1), 0.0, None, False)[0]
    assert is_near(found, attend_slowly(query.detach(), key, value, SCALE, lambda i, j: j <= i - 3))
    found.sum().backward()
    assert query.grad is not None and bool((query.grad[:, :3] == 0).all()) and bool(torch.isfinite(query.grad).all())


@pytest.mark.parametrize("window", [(2, 1), (0, -1), (-1, 0), (3, 3)])
def test_a_window_lets_a_query_see_only_keys_near_its_own(window: tuple[int, int]) -> None:
    left, right = window

    def sees(i: int, j: int) -> bool:
        own = i + BEHIND
        return (left < 0 or j >= own - left) and (right < 0 or j <= own + right)

    assert is_near(
        flash(0.0, None, False, window, 0.0, None, False, False)[0], attend_slowly(QUERY, KEY, VALUE, SCALE, sees)
    )


def test_a_softcap_bounds_the_scores() -> None:
    expected = attend_slowly(QUERY, KEY, VALUE, 2.0, change=lambda score, b, h, i, j: 3.0 * math.tanh(score / 3.0))
    assert is_near(flash(0.0, 2.0, False, (-1, -1), 3.0, None, False, False, True)[0], expected)


@pytest.mark.parametrize("slopes", [SLOPES, torch.stack((SLOPES, 2 * SLOPES))], ids=["of heads", "of batch and heads"])
def test_alibi_lowers_scores_by_distance(slopes: torch.Tensor) -> None:
    rows = slopes if slopes.dim() == 2 else torch.stack((slopes, slopes))

    def lower(score: float, b: int, h: int, i: int, j: int) -> float:
        return score - float(rows[b, h]) * abs(i + BEHIND - j)

    expected = attend_slowly(QUERY, KEY, VALUE, SCALE, lambda i, j: j <= i + BEHIND, lower)
    assert is_near(flash(0.0, None, True, (-1, -1), 0.0, slopes, False, False, True)[0], expected)


@pytest.mark.parametrize(
    "rest",
    [
        (0.0, 0.3, True, False),  # 2.0
        (0.0, 0.3, True, (-1, -1), False),  # 2.3
        (0.0, 0.3, True, (-1, -1), None, False, False),  # 2.4
        (0.0, 0.3, True, (-1, -1), 0.0, None, False, False),  # 2.6
        (0.0, 0.3, True, (-1, -1), 0.0, None, False, False, True),  # 2.7
        (0.3, True, None, None, None, None, (-1, -1), 0, 0.0, 1, None, False, 0, False),  # 3
    ],
    ids=["2.0", "2.3", "2.4", "2.6", "2.7", "3"],
)
def test_the_arguments_of_every_version_are_understood(rest: tuple[Any, ...]) -> None:
    assert is_near(flash(*rest)[0], attend_slowly(QUERY, KEY, VALUE, 0.3, lambda i, j: j <= i + BEHIND))


def test_what_is_returned_with_the_weights() -> None:
    found, total, weights = flash(0.0, 0.3, False, (-1, -1), 0.0, None, False, True)
    assert is_near(found, attend_slowly(QUERY, KEY, VALUE, 0.3)) and weights is None
    scores = 0.3 * torch.einsum("bihd,bjhd->bhij", QUERY, KEY.repeat_interleave(2, 2))
    assert is_near(total, scores.exp().sum(-1).log())


def test_packed_tensors() -> None:
    packed = draw(2, 5, 3, 4, 8)
    expected = attend_slowly(packed[:, :, 0], packed[:, :, 1], packed[:, :, 2], SCALE)
    rest = (0.0, None, False, (-1, -1), 0.0, None, False, False)
    assert is_near(call_meaning("Autograd.FlashAttnQKVPackedFunc", packed, *rest)[0], expected)
    found = call_meaning("Autograd.FlashAttnKVPackedFunc", QUERY, torch.stack((KEY, VALUE), 2), *rest)[0]
    assert is_near(found, attend_slowly(QUERY, KEY, VALUE, SCALE))


def test_sequences_of_several_lengths() -> None:
    query, packed = draw(9, 4, 8), draw(11, 2, 2, 8, seed=2)
    ends, ends_key = torch.tensor([0, 3, 9], dtype=torch.int32), torch.tensor([0, 5, 11], dtype=torch.int32)
    rest = (0.0, None, True, (-1, -1), 0.0, None, False, False)
    expected = torch.cat(
        [
            torch.from_numpy(
                attend_slowly(query[None, :3], packed[None, :5, 0], packed[None, :5, 1], SCALE, lambda i, j: j <= i + 2)
            )[0],
            torch.from_numpy(
                attend_slowly(query[None, 3:], packed[None, 5:, 0], packed[None, 5:, 1], SCALE, lambda i, j: j <= i)
            )[0],
        ]
    )
    name = "Autograd.FlashAttnVarlen"
    found = call_meaning(f"{name}Func", query, packed[:, 0], packed[:, 1], ends, ends_key, 6, 6, *rest, None)[0]
    assert is_near(found, expected)
    assert is_near(call_meaning(f"{name}KVPackedFunc", query, packed, ends, ends_key, 6, 6, *rest)[0], expected)
    third = (None, None, 6, 6, None, True, None, None, None, None, (-1, -1), 0, 0.0, 1)
    assert is_near(call_meaning(f"{name}Func", query, packed[:, 0], packed[:, 1], ends, ends_key, *third)[0], expected)
    triple = torch.stack((query, query.flip(0), query * 2), 1)
    parts = [
        attend_slowly(*(triple[None, rows, n] for n in range(3)), SCALE, lambda i, j: j <= i)[0]
        for rows in (slice(0, 3), slice(3, 9))
    ]
    found = call_meaning(f"{name}QKVPackedFunc", triple, ends, 6, *rest)[0]
    assert is_near(found, torch.cat([torch.from_numpy(part) for part in parts]))


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ((0.1, None, False, (-1, -1), 0.0, None, False, False), "dropout"),
        ((0.3, True, draw(1), None, None, None, (-1, -1), 0, 0.0), "qv"),
        ((0.3, True, None, None, None, None, (-1, -1), 4, 0.0), "attention_chunk"),
    ],
)
def test_what_the_record_does_not_tell_is_not_guessed(rest: tuple[Any, ...], said: str) -> None:
    with pytest.raises(NotImplementedError, match=said):
        flash(*rest)


@pytest.mark.parametrize("is_causal", [False, True])
def test_operators_of_torch_mean_what_torch_computes(is_causal: bool) -> None:
    query, key, value = draw(2, 3, 5, 8), draw(2, 3, 5, 8, seed=2), draw(2, 3, 5, 8, seed=3)
    expected, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, scale=0.4
    )
    name = "Ops.aten._scaled_dot_product_"
    found = call_meaning(f"{name}flash_attention_for_cpu", query, key, value, 0.0, is_causal, scale=0.4)
    assert is_near(found[0], expected) and is_near(found[1], total)
    assert is_near(call_meaning(f"{name}flash_attention", query, key, value, 0.0, is_causal, scale=0.4)[0], expected)
    for other in ("efficient", "cudnn"):
        found = call_meaning(f"{name}{other}_attention", query, key, value, None, True, 0.0, is_causal, scale=0.4)
        assert is_near(found[0], expected)
    found = call_meaning(f"{name}attention_math", query, key, value, None, 0.0, is_causal, scale=0.4)
    assert is_near(found[0], expected)


def test_a_bias_is_added_and_a_mask_hides() -> None:
    query, key, value = draw(2, 4, 5, 8), draw(2, 2, 6, 8, seed=2), draw(2, 2, 6, 8, seed=3)
    for mask in (draw(5, 6, seed=4), draw(5, 6, seed=4) > -1):
        expected = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        found = call_meaning("Ops.aten._scaled_dot_product_attention_math", query, key, value, mask, enable_gqa=True)[0]
        assert is_near(found, expected)
