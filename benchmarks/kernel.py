"""How fast the kernel reads tensors on a CUDA device: bytes a second, beside a copy of the device's own.

    python benchmarks/kernel.py [--elements 8388608 67108864] [--rounds 11]

Launches take turns over tensors that are together larger than the cache. Medians, by the events of the device.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from tensorprobe.capture.torch.kernel_buffer import KernelBuffer
from tensorprobe.capture.torch.statistics import Extent
from tensorprobe.model.record import Value

LAUNCHES = 16
LEAST_BYTES = 1 << 30  # of all tensors together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 16, 1 << 20, 1 << 23, 1 << 26])
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    buffer = KernelBuffer(torch.device("cuda", 0))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: µs a tensor and TB/s")
    print(f"{'elements':>10} {'dtype':9} {'copy':>16} {'statistics':>16} {'third of it':>16} {'and hash':>16}")
    for elements in given.elements:
        for dtype in (torch.bfloat16, torch.float32):
            count = max(2, min(LAUNCHES, LEAST_BYTES // (elements * dtype.itemsize)))
            tensors = [torch.randn(elements, device="cuda").to(dtype) for _ in range(count)]
            target = torch.empty_like(tensors[0])

            def copy(tensor: torch.Tensor, target: torch.Tensor = target) -> None:
                target.copy_(tensor)

            def reduce(tensor: torch.Tensor) -> None:
                buffer.add_line(tensor.data_ptr(), Extent(tensor.dtype, tensor.numel()), None)

            def reduce_strided(tensor: torch.Tensor) -> None:
                """The heads of an attention: a third of a tensor, transposed."""
                part = tensor[: tensor.numel() // 3 // 4096 * 3 * 4096].view(-1, 3, 32, 128)[:, 1].transpose(0, 1)
                buffer.add(part, Extent(part.dtype, part.numel()), None)

            def reduce_and_hash(tensor: torch.Tensor) -> None:
                buffer.add_line(tensor.data_ptr(), Extent(tensor.dtype, tensor.numel()), Value(None))

            size = elements * dtype.itemsize
            found = [
                time_each(action, tensors, buffer, given.rounds)
                for action in (copy, reduce, reduce_strided, reduce_and_hash)
            ]
            sizes = (2 * size, size, size / 3, size)
            row = [f"{us:8.1f} {bytes_ / us / 1e6:5.2f}  " for us, bytes_ in zip(found, sizes, strict=True)]
            print(f"{elements:10} {str(dtype).removeprefix('torch.'):9} {' '.join(row)}", flush=True)


def time_each(
    action: Callable[[torch.Tensor], None], tensors: list[torch.Tensor], buffer: KernelBuffer, rounds: int
) -> float:
    """Microseconds of the device for one tensor."""
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000_000)  # so that all launches wait in line, and no host time is measured
        begin.record()
        for _ in range(LAUNCHES // len(tensors) + 1):
            for tensor in tensors:
                action(tensor)
        end.record()
        end.synchronize()
        found.append(1000 * begin.elapsed_time(end) / (len(tensors) * (LAUNCHES // len(tensors) + 1)))
        buffer.fetch()
    return statistics.median(found)


if __name__ == "__main__":
    main()
