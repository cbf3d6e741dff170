"""A neural operator that weighs the lowest frequencies: by fast transforms, or by matrices in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

POINTS, WIDTH, MODES, ENTER, LAYERS = 16, 6, 4, 2, 2
ANGLES = 2 * np.pi * np.arange(POINTS)[:, None] * np.arange(MODES) / POINTS
SHARES = np.where(np.arange(MODES) == 0, 1.0, 2.0) / POINTS


class Spectral(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.real = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, MODES))
        self.imaginary = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, MODES))

    def forward(self, x):
        spectrum = torch.fft.rfft(x)[:, :, :MODES]  # @cosine @sine
        weight = torch.complex(self.real, self.imaginary)
        spectrum = torch.einsum("bim,iom->bom", spectrum, weight)  # @new_real @new_imaginary
        return torch.fft.irfft(F.pad(spectrum, (0, POINTS // 2 + 1 - MODES)), n=POINTS)  # @back


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = torch.nn.Linear(ENTER + 1, WIDTH)
        self.spectral = torch.nn.ModuleList([Spectral() for _ in range(LAYERS)])
        self.local = torch.nn.ModuleList([torch.nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(LAYERS)])
        self.project1, self.project2 = torch.nn.Linear(WIDTH, 10), torch.nn.Linear(10, 1)

    def forward(self, field):
        places = torch.arange(POINTS, dtype=field.dtype) / POINTS  # @places
        x = torch.cat([field, places.view(1, -1, 1).expand(len(field), -1, -1)], dim=-1)  # @joined
        x = self.lift(x).transpose(1, 2)  # @lift
        for number, (spectral, local) in enumerate(zip(self.spectral, self.local, strict=True)):
            x = spectral(x) + local(x)  # @local @last @both
            if number < LAYERS - 1:
                x = F.gelu(x)  # @active
        return self.project2(F.gelu(self.project1(x.transpose(1, 2)))).squeeze(-1)  # @project1 @project2


def differentiate(x):
    return (x.roll(-1, dims=1) - x.roll(1, dims=1)) * (POINTS / 2)  # @slope


def compute_reference_loss(network, field, target):
    found = network(field)
    far = torch.linalg.vector_norm(found - target, dim=1) / torch.linalg.vector_norm(target, dim=1)  # @far
    slope, wanted = differentiate(found), differentiate(target)
    steep = (slope - wanted).norm(dim=1) / wanted.norm(dim=1)  # @steep
    return far.mean() + 0.3 * steep.mean()  # @loss


class Candidate(nn.Cell):
    """Fields keep their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Dense(ENTER + 1, WIDTH)
        self.real = ms.Parameter(ops.zeros((LAYERS, MODES, WIDTH, WIDTH)), name="real")
        self.imaginary = ms.Parameter(ops.zeros((LAYERS, MODES, WIDTH, WIDTH)), name="imaginary")
        self.local = nn.CellList([nn.Dense(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.project1, self.project2 = nn.Dense(WIDTH, 10), nn.Dense(10, 1)
        self.cosine = ms.Tensor(np.cos(ANGLES).T, ms.float32)
        self.sine = ms.Tensor(-np.sin(ANGLES).T, ms.float32)  # @table
        back = np.concatenate([np.cos(ANGLES) * SHARES, -np.sin(ANGLES) * SHARES], axis=1)  # @inverse
        self.back = ms.Tensor(back, ms.float32)
        self.places = ms.Tensor(np.linspace(0, 1, POINTS, endpoint=False).reshape(1, -1, 1), ms.float32)  # @grid

    def filter(self, x, number):
        """One product of matrices for each frequency."""
        real = ops.matmul(self.cosine, x).swapaxes(0, 1)  # @cosine
        imaginary = ops.matmul(self.sine, x).swapaxes(0, 1)  # @sine
        a, b = self.real[number], self.imaginary[number]
        new_real = ops.bmm(real, a) - ops.bmm(imaginary, b)  # @new_real
        new_imaginary = ops.bmm(real, b) + ops.bmm(imaginary, a)  # @new_imaginary
        return mint.matmul(self.back, ops.cat((new_real, new_imaginary), axis=0).swapaxes(0, 1))  # @back

    def construct(self, field):
        places = ops.broadcast_to(self.places, (len(field), POINTS, 1))
        x = self.lift(ops.cat((field, places), axis=-1))  # @joined @lift
        x = self.filter(x, 0) + self.local[0](x)  # @local @both
        x = ops.gelu(x, approximate="none")  # @active
        x = self.filter(x, 1) + self.local[1](x)  # @last @local @both
        x = ops.gelu(self.project1(x), approximate="none")  # @project1
        return self.project2(x)[..., 0]  # @project2


def steepen(x):
    return (ops.cat((x[:, 1:], x[:, :1]), 1) - ops.cat((x[:, -1:], x[:, :-1]), 1)) * (POINTS / 2)  # @slope


def measure(found, target):
    return ops.sqrt(ops.square(found - target).sum(1) / ops.square(target).sum(1))  # @far @steep


def compute_candidate_loss(network, field, target):
    found = network(field)
    far = measure(found, target)  # @far
    steep = measure(steepen(found), steepen(target))  # @steep
    return (far + 0.3 * steep).mean()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {name: array for name, array in weights.items() if name.startswith(("lift", "project"))}
    for name in ("real", "imaginary"):
        parts = [weights[f"spectral.{number}.{name}"].transpose(2, 0, 1) for number in range(LAYERS)]
        converted[name] = np.stack(parts)
    for number in range(LAYERS):
        converted[f"local.{number}.weight"] = weights[f"local.{number}.weight"][:, :, 0]
        converted[f"local.{number}.bias"] = weights[f"local.{number}.bias"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3800 + step)
    field = random.normal(size=(3, POINTS, ENTER)).astype(np.float32)
    return field, random.normal(size=(3, POINTS)).astype(np.float32)


FAULTS = (
    Fault("grid with its end", "joined", "endpoint=False", "endpoint=True", edit="grid"),
    Fault("sign of the transform", "sine", "-np.sin(ANGLES).T", "np.sin(ANGLES).T", edit="table"),
    Fault(
        "product of complex numbers",
        "new_imaginary",
        "ops.bmm(real, b) + ops.bmm(imaginary, a)",
        "ops.bmm(real, b) - ops.bmm(imaginary, a)",
    ),
    Fault("local part detached", "last", "self.local[1](x)", "self.local[1](ops.stop_gradient(x))", is_backward=True),
    Fault("reference differs forward alone", "slope", "x.roll(1, dims=1)", "x", side="reference"),
    Fault(
        "every frequency once, and gelu by tanh",
        "back",
        "np.cos(ANGLES) * SHARES, -np.sin(ANGLES) * SHARES",
        "np.cos(ANGLES) / POINTS, -np.sin(ANGLES) / POINTS",
        edit="inverse",
        second=("project1", 'approximate="none"', 'approximate="tanh"'),
    ),
)
