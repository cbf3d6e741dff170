"""One function of torch called at once, and the same written out in single calls, with one mistake in either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Program = Callable[["Weights", torch.Tensor], torch.Tensor]
LABELS = torch.tensor([0, 3, 5, -100, 7, 2])


class Weights(nn.Module):
    """What all programs here compute with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in ("query", "key", "value", "out"):
            setattr(self, name, nn.Parameter(torch.randn(8, 8) * 0.6))
        self.scale = nn.Parameter(1 + 0.3 * torch.randn(8))
        self.bias = nn.Parameter(torch.randn(8))
        self.recurrence = nn.LSTM(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        self.program: Program | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.program is not None
        return self.program(self, x)


# -- attention ---------------------------------------------------------------------------------------------------------


def split_heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(1, 6, 2, 4).transpose(1, 2)


def finish(model: Weights, heads: torch.Tensor) -> torch.Tensor:
    return (heads.transpose(1, 2).reshape(6, 8) @ model.out).square().mean()


def fused_attention(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    query, key, value = (split_heads(x @ one) for one in (model.query, model.key, model.value))
    scale = 0.25 if fault == "scale" else None
    return finish(model, F.scaled_dot_product_attention(query, key, value, is_causal=fault != "no mask", scale=scale))


def written_attention(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    query, key, value = (split_heads(x @ one) for one in (model.query, model.key, model.value))
    scores = query @ key.transpose(-2, -1)
    scores = scores * (0.25 if fault == "scale" else 0.5)
    if fault != "no mask":
        mask = torch.ones(6, 6, dtype=torch.bool).triu(2 if fault == "mask" else 1)
        scores = scores.masked_fill(mask, float("-inf"))
    shares = torch.softmax(scores, dim=-2 if fault == "dim" else -1)
    return finish(model, shares @ (key if fault == "value" else value))


# -- normalisation -----------------------------------------------------------------------------------------------------


def fused_layer_norm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    bias = None if fault == "bias" else model.bias
    normal = F.layer_norm(x @ model.query, (8,), model.scale, bias, 1e-3 if fault == "epsilon" else 1e-5)
    return (normal @ model.out).square().mean()


def written_layer_norm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    x = x @ model.query
    centred = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, unbiased=fault == "unbiased")
    normal = centred / torch.sqrt(variance + (1e-3 if fault == "epsilon" else 1e-5))
    normal = normal * model.scale
    if fault != "bias":
        normal = normal + model.bias
    return (normal @ model.out).square().mean()


def fused_rms_norm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    normal = F.rms_norm(x @ model.query, (8,), model.scale, 1e-3 if fault == "epsilon" else 1e-5)
    return (normal @ model.out).square().mean()


def written_rms_norm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    x = x @ model.query
    size = x.pow(2).mean(0 if fault == "dim" else -1, keepdim=True)
    normal = x * torch.rsqrt(size + (1e-3 if fault == "epsilon" else 1e-5)) * model.scale
    return (normal @ model.out).square().mean()


def fused_group_norm(model: Weights, x: torch.Tensor) -> torch.Tensor:
    return (F.group_norm(x @ model.query, 2, model.scale, model.bias) @ model.out).square().mean()


def written_group_norm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    groups = (
        (x @ model.query).reshape(6, 4, 2).transpose(1, 2) if fault == "groups" else (x @ model.query).view(6, 2, 4)
    )
    centred = groups - groups.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    size = torch.sqrt(variance) + 1e-5 if fault == "epsilon" else torch.sqrt(variance + 1e-5)
    normal = centred / size
    return ((normal.reshape(6, 8) * model.scale + model.bias) @ model.out).square().mean()


def fused_instance_norm(model: Weights, x: torch.Tensor) -> torch.Tensor:
    return (F.instance_norm((x @ model.query).view(2, 3, 8)).view(6, 8) @ model.out).square().mean()


def written_instance_norm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    x = (x @ model.query).view(2, 3, 8)
    centred = x - x.mean(-1, keepdim=True)
    size = torch.sqrt((centred**2).mean(-1, keepdim=True) + (1e-2 if fault == "epsilon" else 1e-5))
    return ((centred / size).view(6, 8) @ model.out).square().mean()


# -- loss and activation -----------------------------------------------------------------------------------------------


def fused_cross_entropy(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    smoothing = 0.2 if fault == "smoothing" else 0.1
    return F.cross_entropy(x @ model.out, LABELS, label_smoothing=smoothing)


def written_cross_entropy(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    logits = x @ model.out
    shares = logits - torch.logsumexp(logits, 0 if fault == "dim" else 1, keepdim=True)
    kept = LABELS != -100
    chosen = -shares.gather(1, LABELS.clamp(min=0).unsqueeze(1)).squeeze(1) * kept
    spread = -shares.sum(1) * kept
    count = 6 if fault == "count" else kept.sum()
    return chosen.sum() / count * 0.9 + spread.sum() / count * (0.1 if fault == "smoothing" else 0.1 / 8)


def fused_gelu(model: Weights, x: torch.Tensor) -> torch.Tensor:
    return (F.gelu(x @ model.query, approximate="tanh") @ model.out).square().mean()


def written_gelu(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    x = x @ model.query
    cubic = x + (0.0044715 if fault == "factor" else 0.044715) * x**3
    return ((0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * cubic))) @ model.out).square().mean()


# -- layers ------------------------------------------------------------------------------------------------------------


def fused_lstm(model: Weights, x: torch.Tensor) -> torch.Tensor:
    return (model.recurrence(x.view(3, 2, 8))[0] @ model.out).square().mean()


def written_lstm(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    layer = model.recurrence
    hidden = cell = torch.zeros(2, 8, dtype=x.dtype)
    found = []
    for one in x.view(3, 2, 8):
        bias = None if fault == "bias" else layer.bias_hh_l0
        gates = F.linear(one, layer.weight_ih_l0, layer.bias_ih_l0) + F.linear(hidden, layer.weight_hh_l0, bias)
        enter, forget, new, leave = gates.chunk(4, 1)
        if fault == "order":
            enter, forget = forget, enter
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * (cell if fault == "tanh" else torch.tanh(cell))
        found.append(hidden)
    return (torch.stack(found) @ model.out).square().mean()


def fused_multihead(model: Weights, x: torch.Tensor) -> torch.Tensor:
    x = x.view(1, 6, 8)
    return model.attention(x, x, x, need_weights=False)[0].square().mean()


def written_multihead(model: Weights, x: torch.Tensor, fault: str = "") -> torch.Tensor:
    layer = model.attention
    joint = F.linear(x, layer.in_proj_weight, None if fault == "bias" else layer.in_proj_bias)
    if fault == "heads":
        query, key, value = (one.reshape(1, 2, 6, 4) for one in joint.chunk(3, -1))
    else:
        query, key, value = (split_heads(one) for one in joint.chunk(3, -1))
    shares = torch.softmax(query @ key.transpose(-2, -1) / 2, -1)
    heads = (shares @ value).transpose(1, 2).reshape(1, 6, 8)
    return F.linear(heads, layer.out_proj.weight, layer.out_proj.bias).square().mean()


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One mistake. `words`: what the named call of the written side does, any of these."""

    fused: Callable[..., torch.Tensor]
    written: Callable[..., torch.Tensor]
    fault: str
    words: str
    because: str = ""
    """A part of what is said."""
    is_fused_wrong: bool = False
    dtype: torch.dtype = torch.float32
    is_inside: bool = True
    """Is it a value inside the fused call that the written one stands against, or its result?"""

    @property
    def name(self) -> str:
        side = "fused" if self.is_fused_wrong else "written"
        return f"{self.fused.__name__}, {self.fault}, {side}, {str(self.dtype)[6:]}"


ATTENTION = fused_attention, written_attention
LAYER_NORM = fused_layer_norm, written_layer_norm
CROSS_ENTROPY = fused_cross_entropy, written_cross_entropy
BFLOAT16 = torch.bfloat16
CASES = [
    Case(*ATTENTION, "scale", "mul", "0.5 times"),
    Case(*ATTENTION, "mask", "triu masked_fill"),
    Case(*ATTENTION, "no mask", "softmax"),
    Case(*ATTENTION, "dim", "softmax", "dim=2 where the reference had 3"),
    Case(*ATTENTION, "value", "matmul", "a different value for input.1"),
    Case(*ATTENTION, "scale", "mul", "0.5 times", dtype=BFLOAT16),
    Case(*ATTENTION, "dim", "softmax", dtype=BFLOAT16),
    Case(*ATTENTION, "scale", "mul", "0.5 times", is_fused_wrong=True),
    Case(*ATTENTION, "no mask", "triu masked_fill softmax", is_fused_wrong=True),
    Case(*LAYER_NORM, "epsilon", "add", "0.001 where the reference had 1e-05"),
    Case(*LAYER_NORM, "epsilon", "add", "0.001 where the reference had 1e-05", dtype=BFLOAT16),
    Case(*LAYER_NORM, "unbiased", "var"),
    Case(*LAYER_NORM, "bias", "mul matmul", "only the reference calls "),
    Case(*LAYER_NORM, "epsilon", "add", "0.001 where the reference had 1e-05", is_fused_wrong=True),
    Case(*LAYER_NORM, "bias", "add", "only the reference calls ", is_fused_wrong=True, is_inside=False),
    Case(fused_rms_norm, written_rms_norm, "epsilon", "add"),
    Case(fused_rms_norm, written_rms_norm, "dim", "mean", "dim=[0] where the reference had [1]"),
    Case(fused_rms_norm, written_rms_norm, "epsilon", "add", is_fused_wrong=True, dtype=BFLOAT16),
    Case(fused_group_norm, written_group_norm, "epsilon", "sqrt add"),
    Case(fused_group_norm, written_group_norm, "groups", "reshape transpose"),
    Case(fused_instance_norm, written_instance_norm, "epsilon", "add"),  # torch shapes it otherwise inside
    Case(*CROSS_ENTROPY, "dim", "logsumexp", "dim=[0] where the reference had [1]"),
    Case(*CROSS_ENTROPY, "count", "div"),
    Case(*CROSS_ENTROPY, "smoothing", "mul", "0.1 where the reference had 0.0125"),
    Case(*CROSS_ENTROPY, "smoothing", "mul", is_fused_wrong=True),
    Case(fused_gelu, written_gelu, "factor", "mul", "0.0044715 where the reference had 0.044715"),
    Case(fused_lstm, written_lstm, "bias", "chunk"),  # nothing was hidden before: the sum is seen where it is used
    Case(fused_lstm, written_lstm, "order", "sigmoid mul"),
    Case(fused_lstm, written_lstm, "tanh", "mul"),
    Case(fused_multihead, written_multihead, "bias", "linear", "does not take attention.in_proj_bias"),
    Case(fused_multihead, written_multihead, "heads", "reshape", "in the wrong order"),
]
