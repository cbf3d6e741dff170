"""How much of Python's stack is left, and the limit that a program finds as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tensorprobe.capture.recursion import StackRoom, room


@pytest.fixture(autouse=True)
def limit() -> Iterator[int]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield 1000
    sys.setrecursionlimit(before)


def descend(depth: int, action: Callable[[], bool]) -> bool:
    return action() if depth == 0 else descend(depth - 1, action)


def deepest(action: Callable[[], object]) -> int:
    """How deeply `action` can be called."""
    for depth in range(sys.getrecursionlimit(), 0, -1):
        try:
            descend(depth, lambda: bool(action()) or True)
        except RecursionError:
            continue
        return depth
    raise AssertionError("it cannot be called at all")


def test_the_stack_is_short_only_near_its_end() -> None:
    whole = deepest(lambda: None)
    assert not room.is_short()
    assert not descend(whole - 200, room.is_short)
    assert descend(whole - 100, room.is_short)


def test_a_stack_whose_end_the_program_has_moved_is_not_short() -> None:
    whole = deepest(lambda: None)
    sys.setrecursionlimit(3000)
    assert not descend(whole - 100, room.is_short)


def test_inside_a_call_for_which_capture_stands_aside_there_is_more_room_and_afterwards_the_limit_is_as_before() -> (
    None
):
    room = StackRoom()
    with room.widened():
        assert room.is_short() and sys.getrecursionlimit() > 1000 and room.limit == 1000
        with room.widened():
            assert sys.getrecursionlimit() > 1000
        assert sys.getrecursionlimit() > 1000
    assert sys.getrecursionlimit() == room.limit == 1000 and not room.is_short()


def test_the_limit_goes_back_as_soon_as_the_stack_is_not_deep_any_more() -> None:
    room = StackRoom()
    room.widen()
    assert sys.getrecursionlimit() > 1000
    assert not room.is_short()
    assert sys.getrecursionlimit() == 1000


def test_a_limit_that_the_program_sets_meanwhile_stays() -> None:
    room = StackRoom()
    with room.widened():
        sys.setrecursionlimit(2500)
    assert sys.getrecursionlimit() == 2500


def test_a_thread_does_not_take_back_the_room_of_another() -> None:
    room = StackRoom()
    is_wide, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with room.widened():
            is_wide.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_wide.wait(60)
    try:
        room.widen()
        room.give_back()
        assert not room.is_short()  # this thread does not stand aside
        assert sys.getrecursionlimit() > 1000
    finally:
        may_end.set()
        thread.join()
    assert sys.getrecursionlimit() == 1000


def test_the_room_is_never_more_than_the_limit_itself() -> None:
    room = StackRoom()
    sys.setrecursionlimit(100 + len_of_stack())
    limit = sys.getrecursionlimit()
    room.widen()
    assert sys.getrecursionlimit() <= 2 * limit
    room.give_back()
    assert sys.getrecursionlimit() == limit


def len_of_stack() -> int:
    count, frame = 0, sys._getframe()
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count
