"""Programs that write through something that was taken before the window, or in ways that torch does not count. Each
function prepares what the program needs, and returns the program."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import _unsafe_preserve_version_counter as preserve_version

from tests.capture.torch.writes import Program, See


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.randn(4, 8))


def write_through_data() -> Program:
    p, q = parameter(), parameter()
    alias, other_alias = p.data, q.data
    with torch.no_grad():
        p.add_(1)

    def program(see: See) -> None:
        for tensor, data in ((p, alias), (q, other_alias)):
            see(tensor)
            data.mul_(2)
            see(tensor)
            torch._foreach_mul_([data], 2.0)
            see(tensor)
            torch.add(torch.ones(4, 8), 1, out=data)
            see(tensor)

    return program


def write_through_dlpack() -> Program:
    p = parameter()
    alias = torch.from_dlpack(p.detach())

    def program(see: See) -> None:
        see(p)
        alias.mul_(2)
        see(p)

    return program


def write_through_a_memoryview() -> Program:
    p = parameter()
    view = memoryview(p.detach().numpy()).cast("B").cast("f")

    def program(see: See) -> None:
        see(p)
        view[3] = 77.0
        see(p)
        x = torch.ones(4, 8) * 1
        see(x)
        late = memoryview(x.numpy())
        see(x)
        late[0, 0] = 5
        see(x)

    return program


def write_through_a_buffer() -> Program:
    buffer = bytearray(128)
    p = nn.Parameter(torch.frombuffer(buffer, dtype=torch.float32).view(4, 8))

    def program(see: See) -> None:
        see(p)
        buffer[:4] = np.float32(3).tobytes()
        see(p)

    return program


def write_to_a_file_in_memory() -> Program:
    path = Path(tempfile.mkdtemp()) / "weights"
    storage = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=128)
    p = nn.Parameter(torch.empty(0).set_(storage, 0, (4, 8)).zero_())
    content = np.memmap(path, dtype=np.float32, mode="r+")

    def program(see: See) -> None:
        see(p)
        content[:] = 4
        see(p)

    return program


def write_through_a_storage() -> Program:
    p, q = parameter(), parameter()
    storage, typed = p.untyped_storage(), q.detach()._typed_storage()

    def program(see: See) -> None:
        see(p)
        storage.fill_(0)
        see(p)
        storage[3] = 64
        see(p)
        see(q)
        typed._setitem(1, 5.0)
        see(q)

    return program


def refill_a_storage() -> Program:
    """As FSDP2 does with the parameters that it has gathered."""
    p, q = parameter(), parameter()
    early = p.untyped_storage()

    def program(see: See) -> None:
        for tensor, storage in ((p, early), (q, q.untyped_storage())):
            size = storage.nbytes()
            for number in range(3):
                see(tensor)
                storage.resize_(0)
                storage.resize_(size)
                with torch.no_grad(), preserve_version(tensor):
                    tensor.copy_(torch.full((4, 8), float(number)))
                see(tensor)
        early.copy_(torch.full((4, 8), 9.0).untyped_storage())
        see(p)

    return program


def write_without_a_new_version() -> Program:
    p = parameter()

    def program(see: See) -> None:
        y = torch.ones(4, 8) * 2
        for tensor in (p, y):
            see(tensor)
            with torch.no_grad(), preserve_version(tensor):
                tensor.mul_(2)
            see(tensor)
            with torch.no_grad(), preserve_version(tensor):
                torch.split_with_sizes_copy(torch.randn(8, 8), [4, 4], dim=0, out=[tensor, torch.empty(4, 8)])
            see(tensor)

    return program


def exchange_tensors() -> Program:
    p, q = parameter(), parameter()

    def program(see: See) -> None:
        x, y = torch.ones(4, 8) * 1, torch.ones(4, 8) * 2
        for first, second in ((p, q), (x, y)):
            see(first)
            see(second)
            torch.utils.swap_tensors(first, second)
            see(first)
            see(second)
            first.data, second.data = second.data, first.data
            see(first)
            see(second)

    return program


def share_a_storage_by_set() -> Program:
    def program(see: See) -> None:
        x, y = torch.ones(4, 8) * 1, torch.ones(4, 8) * 2
        see(y)
        x.set_(y)
        see(y)
        torch._foreach_mul_([x], 2.0)
        see(y)
        see(x)

    return program


def step_with_a_fused_kernel() -> Program:
    p = parameter()
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-8}

    def program(see: See) -> None:
        see(p)
        for step in (torch._fused_adamw_, torch.ops.aten._fused_adamw_, torch.ops.aten._fused_adamw_.default):
            lists = [[torch.ones(4, 8)], [torch.zeros(4, 8)], [torch.zeros(4, 8)], [], [torch.tensor(1.0)]]
            with torch.no_grad():
                step([p], *lists, **numbers, amsgrad=False, maximize=False)
            see(p)

    return program


def normalise_with_statistics_in_a_matrix() -> Program:
    p = parameter()
    kernels: list[Callable[..., Any]] = [
        torch.native_batch_norm,
        torch.ops.aten.native_batch_norm,
        torch.ops.aten._native_batch_norm_legit,
        lambda *args: torch.batch_norm(*args, False),
        lambda *args: torch._batch_norm_impl_index(*args, False),
    ]

    def program(see: See) -> None:
        see(p)
        for kernel in kernels:
            with torch.no_grad():
                rows = p[0].detach(), p[1].detach()
                kernel(torch.randn(5, 8) + 3, None, None, *rows, True, 0.1, 1e-5)
            see(p)

    return program


def normalise_with_a_layer() -> Program:
    norm = nn.BatchNorm1d(8)

    def program(see: See) -> None:
        for _ in range(3):
            see(norm.running_mean)
            see(norm.running_var.view(2, 4))
            see(norm.num_batches_tracked)
            norm(torch.randn(5, 8) + 3)

    return program


def write_in_the_hooks_of_a_module() -> Program:
    p, q = parameter(), parameter()
    layer = nn.Linear(8, 8)

    def program(see: See) -> None:
        layer.register_forward_hook(lambda *_: Changing.data(p))
        layer.register_forward_pre_hook(lambda *_: q.detach().numpy().fill(3))
        for _ in range(2):
            see(p)
            see(q)
            layer(torch.randn(2, 8))
        see(p)
        see(q)

    return program


def write_in_the_backward_of_an_early_graph() -> Program:
    """Nothing of this graph was recorded, so nothing is told when it runs."""
    p, w = parameter(), parameter()
    v = w * 2
    v.register_hook(lambda _: Changing.data(p))
    w.register_post_accumulate_grad_hook(lambda _: Changing.data(p))
    loss = v.sum()

    def program(see: See) -> None:
        see(p)
        torch.autograd.grad(loss, w, retain_graph=True)
        see(p)
        torch.autograd.backward(loss, retain_graph=True)
        see(p)
        loss.backward()
        see(p)

    return program


class Changing:
    @staticmethod
    def data(tensor: torch.Tensor) -> None:
        """A hook that returns something would replace what it was given."""
        tensor.data.mul_(2)


def average_the_weights() -> Program:
    model = nn.Linear(8, 8)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)

    def program(see: See) -> None:
        for _ in range(3):
            model(torch.randn(2, 8)).sum().backward()
            see(average.module.weight)
            optimizer.step()
            average.update_parameters(model)
            see(average.module.weight)
            see(model.weight)

    return program


def write_by_a_collective() -> Program:
    """Needs a process group; one process is enough."""
    p = parameter()

    def program(see: See) -> None:
        out, part = torch.zeros(4, 8) * 1, [torch.zeros(4, 8) * 1]
        see(out)
        work = dist.all_gather_into_tensor(out, torch.ones(4, 8), async_op=True)
        work.wait()
        see(out)
        see(part[0])
        dist.all_gather(part, torch.ones(4, 8))
        see(part[0])
        see(p)
        dist.all_gather_into_tensor(p.detach(), torch.ones(4, 8))
        see(p)
        dist.reduce_scatter_tensor(p.detach(), torch.full((4, 8), 3.0))
        see(p)
        dist.all_reduce(p.detach())
        dist.broadcast(p.detach(), 0)
        see(p)

    return program


EARLY_PROGRAMS: dict[str, Callable[[], Program]] = {
    prepare.__name__: prepare
    for prepare in (
        write_through_data,
        write_through_dlpack,
        write_through_a_memoryview,
        write_through_a_buffer,
        write_to_a_file_in_memory,
        write_through_a_storage,
        refill_a_storage,
        write_without_a_new_version,
        exchange_tensors,
        share_a_storage_by_set,
        step_with_a_fused_kernel,
        normalise_with_statistics_in_a_matrix,
        normalise_with_a_layer,
        write_in_the_hooks_of_a_module,
        write_in_the_backward_of_an_early_graph,
        average_the_weights,
        write_by_a_collective,
    )
}
