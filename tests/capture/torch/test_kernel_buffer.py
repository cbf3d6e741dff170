"""What the kernel gives of each tensor, as its numbers."""

from __future__ import annotations

import math
import threading
from collections import deque

import numpy as np
import pytest
import torch

from tensorprobe.capture.torch.kernel_buffer import Batch, KernelBuffer, finish_rows
from tensorprobe.capture.torch.statistics import Extent
from tests.length import PATIENCE_SECONDS

INF = math.inf


def row(largest: float, smallest: float, infs: int) -> list[float]:
    """Of a tensor: the sums are of what is finite."""
    return [largest, smallest, 6.0, 8.0, 1.0, infs, 1.0, 2.0, 3.0, 4.0]


def test_the_norm_is_the_root_of_the_sum_of_squares() -> None:
    first, second = finish_rows(np.array([row(3.0, -4.0, 0), row(5.0, 5.0, 0)]), [False, False])
    assert first == [3.0, -4.0, 6.0, math.sqrt(8.0), 1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert second == [5.0, 5.0, 6.0, math.sqrt(8.0), 1.0, 0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("ends", "total"), [((INF, -1.0), INF), ((1.0, -INF), -INF), ((INF, -INF), math.nan)], ids=["plus", "minus", "both"]
)
def test_an_infinity_is_in_the_sum_and_the_norm_and_not_in_the_sketch(ends: tuple[float, float], total: float) -> None:
    (merged,) = finish_rows(np.array([row(*ends, 1)]), [False])
    assert merged[2] == pytest.approx(total, nan_ok=True)
    assert (merged[3], merged[5]) == (INF, 1.0)
    assert merged[6:] == [1.0, 2.0, 3.0, 4.0]


def test_the_extremes_of_integers_are_bits_and_no_numbers() -> None:
    (merged,) = finish_rows(np.array([row(INF, math.nan, 0)]), [True])  # as the bits of 0x7FF0000000000000 look
    assert merged[:4] == [0.0, 0.0, 6.0, math.sqrt(8.0)]


class FakeBatch(Batch):
    """One that needs no device: what was launched into it is fetched at once."""

    def __init__(self) -> None:
        self.waiting, self.used, self.streams = [], 0, {}
        self._events, self._failure = [], None
        self._is_free = threading.Event()
        self._is_free.set()
        self.fetched: list[int] = []
        self.has_mark: list[bool] = []

    def mark(self) -> None:
        super().mark()
        self.has_mark.append(True)

    def fetch(self) -> None:
        assert self.has_mark.pop()  # or it would be read before the kernels have written it
        self.fetched.append(len(self.waiting))
        self.waiting, self.used = [], 0
        self._is_free.set()


def make_buffer() -> tuple[KernelBuffer, FakeBatch, FakeBatch]:
    buffer = KernelBuffer.__new__(KernelBuffer)
    batches = FakeBatch(), FakeBatch()
    buffer._batches, buffer._taken = list(batches), deque()
    return buffer, *batches


def launch(buffer: KernelBuffer, count: int) -> None:
    for _ in range(count):
        buffer._batches[0].add(Extent(torch.float32, 1), None, 1)


def test_what_is_launched_while_a_batch_is_fetched_goes_into_another() -> None:
    buffer, first, second = make_buffer()
    launch(buffer, 3)
    buffer.take(waits=False)
    launch(buffer, 2)
    buffer.take(waits=False)  # the first is not fetched yet
    assert len(second.waiting) == 2 and buffer.is_waited_for
    buffer.fetch_taken()
    buffer.fetch()
    assert (first.fetched, second.fetched, buffer.is_waited_for) == ([3], [2], False)


def test_nobody_waits_for_a_batch_that_nobody_else_would_fetch() -> None:
    buffer, first, second = make_buffer()
    launch(buffer, 3)
    buffer.take(waits=False)
    launch(buffer, 2)
    taken = threading.Thread(target=buffer.take, kwargs={"waits": True}, daemon=True)
    taken.start()
    taken.join(PATIENCE_SECONDS)
    assert not taken.is_alive() and first.fetched == [3]
    buffer.fetch_taken()
    assert second.fetched == [2]
