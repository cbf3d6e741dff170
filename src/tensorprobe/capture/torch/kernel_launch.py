"""Launching the kernels of device_kernel.py, which is imported with this file."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from tensorprobe.capture.torch.device_kernel import COLUMNS, DTYPES, FIELDS, UNSPECIALIZED, merge_listed, reduce_tensor
from tensorprobe.capture.torch.layout import merge_dimensions
from tensorprobe.compiled import load_compiled
from tensorprobe.store.sketch import BLOCK

_WARPS = 8
_PROGRAMS_PER_PROCESSOR = 2
_LARGE = 1 << 40
_compiled = load_compiled("tensorprobe.capture.torch._launch", interface=1)


@lru_cache
def processor_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def program_count(count: int, processors: int) -> int:
    """How many programs, and so rows, a tensor of `count` elements takes."""
    return min(-(-count // BLOCK), _PROGRAMS_PER_PROCESSOR * processors)


Strides = tuple[int, int, int, int, int, int, int]
"""How elements lie: in how many dimensions; then of four, the last three sizes, and the steps of the first three. The
last one has no gaps."""
NO_STRIDES: Strides = (1, 1, 1, 1, 1, 1, 1)
_MAX_STRIDED = 1 << 31


@lru_cache(maxsize=4096)
def find_strides(shape: tuple[int, ...], steps: tuple[int, ...], size: int) -> Strides | None:
    """How a tensor lies whose elements have `size` bytes; None where what is read at once would not be in one piece."""
    merged = merge_dimensions(shape, steps)
    side = 16 // size
    is_read_in_pieces = merged and merged[0][1] == 1 and not merged[0][0] % side
    if len(merged) > 4 or not is_read_in_pieces or any(step % side or not step for _, step in merged[1:]):
        return None
    if math.prod(shape) >= _MAX_STRIDED:
        return None
    lengths, gaps = zip(*merged, *[(1, 1)] * (4 - len(merged)), strict=True)
    return len(merged), lengths[2], lengths[1], lengths[0], gaps[3], gaps[2], gaps[1]


Kind = tuple[torch.dtype, bool, int, bool]
"""A dtype; is it aligned; how many dimensions has it; is it hashed?"""
Launch = Callable[[int, int, tuple[int, ...], Strides], None]
"""With so many programs, on a stream, a tensor that lies there."""


class Launcher:
    """Launches compiled kernels. Triton's own way looks at each argument again, for several times as long, and tells
    the hooks of profilers of a kernel that is none of the program's."""

    def __init__(self, rows: torch.Tensor, hashes: torch.Tensor, values: int) -> None:
        self._memory = rows, hashes
        self._rows, self._hashes = rows.data_ptr(), hashes.data_ptr()
        self._device = device = rows.device
        # What a merge of so many needs is there before the program may have used up the memory.
        self._merged = torch.empty(values, COLUMNS, dtype=torch.float64, device=device)
        self._merged_hashes = torch.empty(values, dtype=torch.int64, device=device)
        self._table = torch.empty(values, FIELDS, dtype=torch.int64, device=device)
        self._launches: dict[Kind, Launch] = {}

    def launch(self, kind: Kind, line: tuple[int, int, int, int], strides: Strides, stream: int) -> None:
        """Reduce a tensor. `line`: its address, how many elements it has, its first row, and how many programs work on
        it. Nobody waits."""
        launch = self._launches.get(kind)
        if launch is None:
            launch = self._launches[kind] = self._compile(kind)
        launch(line[3], stream, line, strides)

    def merge(self, table: torch.Tensor, has_hash: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The tensors of a table, whose reductions are over: a row for each, and its hash. They are there until the
        next merge."""
        values = len(table)
        with torch.cuda.device(self._device):
            self._table[:values].copy_(table)
            merge_listed[(values, 1, 1)](self._table, *self._memory, self._merged, self._merged_hashes, has_hash)
        return self._merged[:values], self._merged_hashes[: values if has_hash else 0]

    def _compile(self, kind: Kind) -> Launch:
        """For nothing: no program finds work. All numbers are of 64 bits."""
        constants = (DTYPES[kind[0]], *kind[1:])
        numbers = [-_LARGE] * len(UNSPECIALIZED)
        with torch.cuda.device(self._device):
            kernel = reduce_tensor[(1, 1, 1)](*numbers, *self._memory, *constants, num_warps=_WARPS)
            return self._launch_directly(kernel) or self._launch_by_triton(kernel, constants)

    def _launch_directly(self, kernel: Any) -> Launch | None:
        """By compiled code; None where there is none, or where the kernel is called in some other way."""
        examined = _compiled.examine(kernel.function) if _compiled is not None else None
        if examined is None or examined[0] < len(UNSPECIALIZED) + len(self._memory):
            return None
        run, function = _compiled.launch, kernel.function
        threads, shared_bytes = 32 * kernel.metadata.num_warps, kernel.metadata.shared
        rows, hashes = self._rows, self._hashes

        def launch(programs: int, stream: int, line: tuple[int, ...], strides: Strides) -> None:
            run(function, programs, threads, shared_bytes, stream, *examined, *line, *strides[1:], rows, hashes)

        return launch

    def _launch_by_triton(self, kernel: Any, constants: tuple[Any, ...]) -> Launch:
        run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
        rows, hashes = self._rows, self._hashes

        def launch(programs: int, stream: int, line: tuple[int, ...], strides: Strides) -> None:
            hooks = (None, None, None)
            run(programs, 1, 1, stream, function, metadata, *hooks, *line, *strides[1:], rows, hashes, *constants)

        return launch
