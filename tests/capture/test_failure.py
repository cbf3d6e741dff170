"""Failures are said once for each kind, and counted."""

from __future__ import annotations

import pytest

from tensorprobe.capture.failure import Failures, root_cause


def test_one_kind_is_said_once_wherever_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    failures.note("dump.json", OSError(28, "No space left on device"))
    failures.note("a tensor file", OSError(28, "No space left on device"))
    failures.note("dump.json", OSError(13, "Permission denied"))
    assert [record.getMessage() for record in caplog.records] == [
        "dump.json could not be written (OSError: [Errno 28] No space left on device); training goes on, further "
        "failures of this kind are counted",
        "dump.json could not be written (PermissionError: [Errno 13] Permission denied); training goes on, further "
        "failures of this kind are counted",
    ]
    assert failures.count == 3


def test_the_count_is_that_of_the_step_and_what_was_said_stays_said(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    failures.note("x", ValueError("bad"), count=5)
    failures.restart()
    failures.note("x", ValueError("bad"))
    assert failures.count == 1 and len(caplog.records) == 1


def test_the_error_of_the_system_is_found_behind_that_of_a_framework() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("enforce fail at inline_container") from None
    except RuntimeError as error:
        assert str(root_cause(error)) == "[Errno 28] No space left on device"
    alone = ValueError("alone")
    assert root_cause(alone) is alone
