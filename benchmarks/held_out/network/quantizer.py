"""An autoencoder with a codebook: the nearest entry, gradients straight through, and two losses that detach."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

CHANNELS, WIDTH, CODES = 2, 6, 8


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = torch.nn.Conv2d(CHANNELS, WIDTH, 4, stride=2, padding=1)
        self.codes = torch.nn.Embedding(CODES, WIDTH)
        self.decode = torch.nn.ConvTranspose2d(WIDTH, CHANNELS, 4, stride=2, padding=1)

    def forward(self, x):
        h = self.encode(x).permute(0, 2, 3, 1)  # @encode
        flat = h.reshape(-1, WIDTH)
        nearest = torch.cdist(flat, self.codes.weight).argmin(dim=1)  # @nearest
        code = self.codes(nearest).view(h.shape)  # @code
        straight = h + (code - h).detach()  # @straight
        back = torch.tanh(self.decode(straight.permute(0, 3, 1, 2)))  # @decode
        return back, h, code


def compute_reference_loss(network, x):
    back, h, code = network(x)
    rebuilt = F.mse_loss(back, x)  # @rebuilt
    book = F.mse_loss(code, h.detach())  # @book
    commit = F.mse_loss(h, code.detach())  # @commit
    return rebuilt + book + 0.25 * commit  # @loss


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv2d(CHANNELS, WIDTH, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.codes = Parameter(ops.zeros((CODES, WIDTH)), name="codes")
        self.decode = nn.Conv2dTranspose(WIDTH, CHANNELS, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = ops.transpose(self.encode(x), (0, 2, 3, 1))  # @encode
        flat = h.reshape(-1, WIDTH)
        product = ops.matmul(flat, self.codes.T)  # @nearest
        distance = ops.square(self.codes).sum(-1) - product * 2  # @nearest
        nearest = ops.argmin(distance, axis=1)  # @nearest
        code = ops.gather(self.codes, nearest, 0).reshape(h.shape)  # @code
        straight = h + ops.stop_gradient(code - h)  # @straight
        back = ops.tanh(self.decode(mint.permute(straight, (0, 3, 1, 2))))  # @decode
        return back, h, code


def compute_candidate_loss(network, x):
    back, h, code = network(x)
    rebuilt = ops.mse_loss(back, x)  # @rebuilt
    book = ops.square(code - ops.stop_gradient(h)).mean()  # @book
    commit = ops.square(h - ops.stop_gradient(code)).mean()  # @commit
    return rebuilt + book + commit * 0.25  # @loss


def convert(weights: Weights) -> Weights:
    converted = dict(weights)
    converted["codes"] = converted.pop("codes.weight")
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1500 + step)
    return (random.uniform(-1, 1, size=(3, CHANNELS, 8, 8)).astype(np.float32),)


FAULTS = (
    Fault("not straight through", "straight decode code", "h + ops.stop_gradient(code - h)", "code", is_backward=True),
    Fault(
        "detached on the wrong side",
        "book",
        "code - ops.stop_gradient(h)",
        "ops.stop_gradient(code) - h",
        is_backward=True,
    ),
    Fault("commitment with the weight of the other", "loss", "book + commit * 0.25", "book * 0.25 + commit"),
    Fault(
        "distance without the codes' own length",
        "nearest",
        "ops.square(self.codes).sum(-1) - product * 2",
        "-product * 2",
    ),
    Fault(
        "tanh forgotten",
        "decode rebuilt",
        "ops.tanh(self.decode(mint.permute(straight, (0, 3, 1, 2))))",
        "self.decode(mint.permute(straight, (0, 3, 1, 2)))",
    ),
    Fault(
        "channels not moved to the front",
        "decode",
        "mint.permute(straight, (0, 3, 1, 2))",
        "straight.reshape(straight.shape[0], WIDTH, 4, 4)",
    ),
    Fault("reduction of the rebuilding", "rebuilt", "ops.mse_loss(back, x)", 'ops.mse_loss(back, x, reduction="sum")'),
)
