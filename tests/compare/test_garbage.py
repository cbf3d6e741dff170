"""Python's search for cycles is put off, and does not begin with what was made meanwhile."""

from __future__ import annotations

import gc

from tensorprobe.compare.garbage import garbage_left_alone


def test_it_is_off_inside_and_as_before_outside() -> None:
    assert gc.isenabled()
    with garbage_left_alone():
        assert not gc.isenabled()
        with garbage_left_alone():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_made_meanwhile_is_not_looked_through_as_if_it_were_new() -> None:
    with garbage_left_alone():
        made = [[number] for number in range(1000)]
    young = {id(one) for one in gc.get_objects(generation=0)}
    assert not young & set(map(id, made))
    assert gc.get_freeze_count() == 0


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with garbage_left_alone():
            pass
        assert gc.get_freeze_count() >= count - 10  # what ended meanwhile is no longer there
    finally:
        gc.unfreeze()
