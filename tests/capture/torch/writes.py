"""Programs that change tensors in ways that are easy to miss. Each looks at them with `see` before and after; `see`
returns a copy that a recorded call made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

See = Callable[[torch.Tensor], torch.Tensor]
Program = Callable[[See], None]


def write_in_place(see: See) -> None:
    x = torch.randn(4, 8)
    see(x)
    x.add_(1)
    see(x)
    x[0] = 99
    see(x)
    y = x[2:]
    y.mul_(3)
    see(x)
    see(y)
    torch._foreach_mul_([x], 2.0)
    see(x)
    torch.add(x, 1, out=x)
    see(y)


def write_through_data(see: See) -> None:
    x = torch.randn(4, 8) * 1
    see(x)
    x.data.mul_(3)
    see(x)
    alias = x.data
    see(x)
    alias.mul_(3)
    see(x)
    see(x.view(8, 4))


def write_to_what_a_call_returned(see: See) -> None:
    y = see(torch.randn(4, 8))
    see(y)
    y.data.mul_(3)
    see(y)


def write_to_an_address(see: See) -> None:
    """The address is handed out, then everything else is forgotten, then it is used."""
    w = nn.Parameter(torch.ones(4, 8))
    address = w.data_ptr()
    Passing.apply(torch.ones(1))
    see(torch.ones(4, 8))
    see(w)
    ctypes.memset(address, 0, 4)
    see(w)


class Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def write_through_numpy(see: See) -> None:
    x = torch.randn(4, 8) * 1
    array = x.numpy()
    see(x)
    array[:] = 7
    see(x)
    see(x.t())
    array[:] = 8
    see(x.t())


def write_through_numpy_of_a_view(see: See) -> None:
    x = torch.randn(4, 8) * 1
    see(x)
    np.asarray(x[1:].detach())[:] = 5
    see(x)


def write_to_the_array_behind(see: See) -> None:
    array = np.zeros((4, 8), dtype=np.float32)
    for make in (torch.from_numpy, torch.as_tensor, torch.asarray):
        x = make(array)
        see(x)
        array += 7
        see(x)
        y = x.view(8, 4)
        see(y)
        array += 1
        see(y)


def write_through_storage(see: See) -> None:
    x = torch.ones(4, 8) * 1
    see(x)
    x.untyped_storage().fill_(0)
    see(x)
    storage = x.untyped_storage()
    see(x)
    storage[3] = 64
    see(x)


def write_through_dlpack(see: See) -> None:
    x = torch.ones(4, 8) * 1
    see(x)
    torch.from_dlpack(x).mul_(3)
    see(x)


def update_running_statistics(see: See) -> None:
    norm = nn.BatchNorm1d(8)
    for _ in range(3):
        see(norm.running_mean)
        see(norm.running_mean.view(2, 4))
        see(norm.running_var)
        norm(torch.randn(5, 8) + 3)


def update_running_statistics_after_reset(see: See) -> None:
    see(OLD_NORM.running_mean)
    OLD_NORM.reset_running_stats()
    for _ in range(3):
        see(OLD_NORM.running_mean)
        see(OLD_NORM.running_mean.view(2, 4))
        see(OLD_NORM.num_batches_tracked)
        with torch.no_grad():
            OLD_NORM(torch.randn(5, 8) + 3)


def write_through_aliases_from_before(see: See) -> None:
    see(OLD_PARAMETER)
    OLD_DATA.mul_(1.5)
    see(OLD_PARAMETER)
    OLD_DATA.mul_(1.5)
    see(OLD_PARAMETER)
    see(OLD_ARRAY_PARAMETER)
    OLD_ARRAY[:] = OLD_ARRAY.mean() + 1
    see(OLD_ARRAY_PARAMETER)
    OLD_ARRAY_PARAMETER.detach().add_(1)
    see(OLD_ARRAY_PARAMETER)
    OLD_ARRAY[:] += 1
    see(OLD_ARRAY_PARAMETER)


OLD_NORM = nn.BatchNorm1d(8)
OLD_PARAMETER = nn.Parameter(torch.randn(4, 8))
OLD_DATA = OLD_PARAMETER.data
OLD_ARRAY_PARAMETER = nn.Parameter(torch.randn(4, 8))
OLD_ARRAY = OLD_ARRAY_PARAMETER.detach().numpy()


def show_the_same_memory_in_other_ways(see: See) -> None:
    x = torch.randn(4, 1) * 1
    see(x)
    see(x.expand(4, 5))
    see(x.view(torch.int32))
    z = torch.randn(3, 4, dtype=torch.complex64) * 1
    see(z.imag)
    see(z.conj().imag)
    see(z.real)
    y = torch.randn(6, 6) * 1
    see(y[:3])
    see(y[3:])
    see(y[::2])
    see(y.as_strided((6, 6), (0, 1)))


def free_and_allocate(see: See) -> None:
    for number in range(60):
        x = torch.full((8, 8), float(number))
        see(x)
        del x


def resize_and_set(see: See) -> None:
    x = torch.ones(8, 2)
    see(x)
    x.resize_(4, 2)
    see(x)
    x.resize_(8, 2).fill_(2)
    see(x)
    y = torch.full((8, 2), 3.0)
    see(y)
    x.set_(y)
    see(x)
    y.add_(5)
    see(x)
    see(y)
    x.mul_(2)
    see(y)


def exchange_the_data_of_a_parameter(see: See) -> None:
    w = nn.Parameter(torch.ones(8, 2))
    other = torch.full((8, 2), 3.0)
    see(w)
    w.data = other
    see(w)
    other.mul_(2)
    see(w)
    see(other)
    w.data.mul_(2)
    see(other)
    see(w)
    nn.utils.vector_to_parameters(torch.arange(16.0), [w])
    see(w)


def update_in_backward(see: See) -> None:
    w = nn.Parameter(torch.ones(4, 4))

    def update(parameter: torch.Tensor) -> None:
        parameter.grad.data.mul_(5)  # type: ignore[union-attr]
        parameter.data.add_(parameter.grad)

    w.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        see(w)
        (w * 2).square().sum().backward()
        see(w)
        see(w.grad)
        w.grad.data.mul_(2)
        see(w.grad)


def write_in_a_custom_function(see: See) -> None:
    class Doubling(Passing):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x.data.mul_(2)
            return x.clone()

    w = nn.Parameter(torch.ones(4, 4))
    x = torch.ones(4, 4) * 1
    for _ in range(2):
        see(w)
        see(x)
        Doubling.apply(w)
        Doubling.apply(x)
    see(w)
    see(x)


def compute_in_inference_mode(see: See) -> None:
    with torch.inference_mode():
        x = torch.ones(4, 4) * 1
        see(x)
        x.mul_(2)
        see(x)
        see(x.t())


def load_weights(see: See) -> None:
    layer = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    see(layer.weight)
    layer.load_state_dict(other.state_dict())
    see(layer.weight)
    nn.init.ones_(layer.weight)
    see(layer.weight)
    with torch.no_grad():
        layer.weight.copy_(other.weight * 2)
    see(layer.weight)


def clip_and_scale_gradients(see: See) -> None:
    layer = nn.Linear(4, 4)
    layer(torch.randn(2, 4)).square().sum().backward()
    see(layer.weight.grad)
    nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    see(layer.weight.grad)
    layer(torch.randn(2, 4)).square().sum().backward()
    see(layer.weight.grad)
    layer.zero_grad(set_to_none=False)
    see(layer.weight.grad)


def renormalise_an_embedding(see: See) -> None:
    weight = torch.randn(5, 4) * 10
    see(weight)
    F.embedding(torch.tensor([0, 2]), weight, max_norm=1.0)
    see(weight)


def train_with(make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Program:
    def program(see: See) -> None:
        w = nn.Parameter(torch.randn(8, 4))
        optimizer = make_optimizer([w])
        for _ in range(3):
            see(w)
            w.square().sum().backward()
            optimizer.step()
        see(w)

    return program


PROGRAMS = {
    program.__name__: program
    for program in (
        write_in_place,
        write_through_data,
        write_to_what_a_call_returned,
        write_to_an_address,
        write_through_numpy,
        write_through_numpy_of_a_view,
        write_to_the_array_behind,
        write_through_storage,
        write_through_dlpack,
        update_running_statistics,
        update_running_statistics_after_reset,
        write_through_aliases_from_before,
        show_the_same_memory_in_other_ways,
        free_and_allocate,
        resize_and_set,
        exchange_the_data_of_a_parameter,
        update_in_backward,
        write_in_a_custom_function,
        compute_in_inference_mode,
        load_weights,
        clip_and_scale_gradients,
        renormalise_an_embedding,
    )
}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
    "SGD fused": lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
}
