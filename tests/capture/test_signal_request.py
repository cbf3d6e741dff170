"""SIGUSR1 as a request: followed, handed on, and given back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tensorprobe.capture.signal_request import SignalRequest


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """A handler of the program's own, with the signals that it was given."""
    before, received = signal.getsignal(signal.SIGUSR1), []
    signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    yield received
    signal.signal(signal.SIGUSR1, before)


def test_two_signals_are_one_request_and_the_program_gets_both(handler: list[int]) -> None:
    request = SignalRequest()
    request.install()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert request.take() and not request.take()
    assert len(handler) == 2
    request.remove()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_the_programs_handler_is_back_in_whatever_order_requests_are_removed(order: tuple[int, ...]) -> None:
    mine = signal.getsignal(signal.SIGUSR1)
    requests = [SignalRequest() for _ in range(3)]
    for request in requests:
        request.install()
    for index in order:
        requests[index].remove()
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_a_handler_that_the_program_sets_later_stays() -> None:
    request = SignalRequest()
    request.install()
    signal.signal(signal.SIGUSR1, later := lambda number, _: None)
    request.remove()
    assert signal.getsignal(signal.SIGUSR1) is later
