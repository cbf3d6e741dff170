"""Legitimate differences between two runs: other orders of summation, other kernels, other numbers of threads.

The kernels are replaced below the API, as another device would have them: names, calls and stacks stay the same, and
the results differ by rounding. Backward runs through them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from fault.pytorch.onednn import onednn


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def other_kernels(make: Callable[[], dict[str, Callable[..., object]]]) -> Iterator[None]:
    """Replace kernels of the CPU; oneDNN's convolutions and recurrent networks by torch's own."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings(), onednn(enabled=False):
            warnings.simplefilter("ignore")
            for name, kernel in make().items():
                library.impl(name, kernel, "CPU")
            yield
    finally:
        library._destroy()


def split_kernels() -> dict[str, Callable[..., object]]:
    """Each product as the sum of the products of two halves, the second first."""

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        half = a.shape[1] // 2
        first, second = a.new_empty(a.shape[0], b.shape[1]), a.new_empty(a.shape[0], b.shape[1])
        torch.mm(a[:, half:], b[half:], out=first)
        torch.mm(a[:, :half], b[:half], out=second)
        return first + second

    def addmm(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        return mm(a, b) * alpha + c * beta

    def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        half = a.shape[2] // 2
        shape = a.shape[0], a.shape[1], b.shape[2]
        first, second = a.new_empty(shape), a.new_empty(shape)
        torch.bmm(a[:, :, half:], b[:, half:], out=first)
        torch.bmm(a[:, :, :half], b[:, :half], out=second)
        return first + second

    return {"mm": mm, "addmm": addmm, "bmm": bmm}


def wide_kernels() -> dict[str, Callable[..., object]]:
    """Products, softmax and normalisation summed in float64 and rounded once: a better kernel."""

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        wide = torch.empty(a.shape[0], b.shape[1], dtype=torch.float64)
        return torch.mm(a.double(), b.double(), out=wide).to(a.dtype)

    def addmm(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        wide = torch.empty(a.shape[0], b.shape[1], dtype=torch.float64)
        return (torch.mm(a.double(), b.double(), out=wide) * alpha + c.double() * beta).to(a.dtype)

    def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        wide = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=torch.float64)
        return torch.bmm(a.double(), b.double(), out=wide).to(a.dtype)

    def layer_norm(
        x: torch.Tensor,
        shape: list[int],
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        epsilon: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dimensions = tuple(range(-len(shape), 0))
        wide = x.double()
        mean = wide.mean(dimensions, keepdim=True)
        root = ((wide - mean).square().mean(dimensions, keepdim=True) + epsilon).rsqrt()
        y = (wide - mean) * root
        y = y if weight is None else y * weight.double()
        y = y if bias is None else y + bias.double()
        return y.to(x.dtype), mean.to(x.dtype), root.to(x.dtype)

    def softmax(x: torch.Tensor, dimension: int, half_to_float: bool) -> torch.Tensor:
        powers = (x.double() - x.double().amax(dimension, keepdim=True)).exp()
        return (powers / powers.sum(dimension, keepdim=True)).to(x.dtype)

    return {"mm": mm, "addmm": addmm, "bmm": bmm, "native_layer_norm": layer_norm, "_softmax": softmax}


NOISES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "threads": one_thread,
    "split": lambda: other_kernels(split_kernels),
    "wide": lambda: other_kernels(wide_kernels),
}
