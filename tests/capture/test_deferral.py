"""What a signal asks for in the middle of writing happens when the writing is done."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tensorprobe.capture.deferral import Deferral
from tests.length import PATIENCE_SECONDS, wait_until


def test_outside_nothing_is_deferred() -> None:
    assert not Deferral().defer(lambda: None)


def test_what_is_asked_for_inside_runs_when_the_outermost_work_ends() -> None:
    work, done = Deferral(), []
    with work:
        with work:
            assert work.defer(lambda: done.append("ended"))
        done.append("still working")
    assert done == ["still working", "ended"]


def test_it_runs_once() -> None:
    work, done = Deferral(), []
    with work:
        work.defer(lambda: done.append(1))
    with work:
        pass
    assert done == [1]


def test_it_runs_after_an_exception_too() -> None:
    work, done = Deferral(), []
    try:
        with work:
            work.defer(lambda: done.append(1))
            raise KeyError
    except KeyError:
        done.append(2)
    assert done == [1, 2]


def test_the_work_of_another_thread_defers_nothing_here() -> None:
    work, inside, may_end = Deferral(), threading.Event(), threading.Event()

    def hold() -> None:
        with work:
            inside.set()
            may_end.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(PATIENCE_SECONDS)
    assert not work.defer(lambda: None)
    may_end.set()
    thread.join()


def test_two_threads_do_not_work_at_once() -> None:
    work, count = Deferral(), [0]

    def add() -> None:
        for _ in range(500):
            with work:
                before = count[0]
                count[0] = before + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count[0] == 2000


def test_a_signal_in_the_middle_of_work_acts_after_it() -> None:
    work, done = Deferral(), []

    def handle(*_: object) -> None:
        if not work.defer(lambda: done.append("handled")):
            done.append("at once")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with work:
            signal.raise_signal(signal.SIGUSR1)
            done.append("written")
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["written", "handled", "at once"]


def test_ctrl_c_is_answered_when_the_work_is_done_and_a_second_one_at_once() -> None:
    work, reached = Deferral(), []
    with pytest.raises(KeyboardInterrupt), work:
        with work:
            signal.raise_signal(signal.SIGINT)
            reached.append("inside")
        reached.append("to the end")
    with pytest.raises(KeyboardInterrupt), work:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append("never")
    assert reached == ["inside", "to the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_while_another_thread_writes_gives_the_handler_back() -> None:
    work, is_inside, may_leave = Deferral(), threading.Event(), threading.Event()

    def write() -> None:
        with work:
            is_inside.set()
            may_leave.wait(PATIENCE_SECONDS)

    def interrupt_twice() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGINT) is not before)  # the main thread is at the lock
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: work._interrupts._arrived)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    writer, user = threading.Thread(target=write), threading.Thread(target=interrupt_twice)
    writer.start()
    is_inside.wait(PATIENCE_SECONDS)
    user.start()
    with pytest.raises(KeyboardInterrupt), work:
        pytest.fail("the lock was not free")
    assert signal.getsignal(signal.SIGINT) is before
    may_leave.set()
    writer.join()
    user.join()
    with work:
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
