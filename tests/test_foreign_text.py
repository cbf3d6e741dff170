"""Text that others wrote does nothing to the terminal that shows it."""

from __future__ import annotations

import logging
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.capture.message import StandardError
from tensorprobe.errors import DumpError, TensorprobeError
from tensorprobe.foreign_text import clean, clean_lines, shorten

HOSTILE = "a\x1b[2J\x9b31m\x07\r\u202e\u2028\ud800b"


def test_what_steers_a_terminal_becomes_an_escape() -> None:
    assert clean(HOSTILE) == r"a\x1b[2J\x9b31m\x07\r\u202e\u2028\ud800b"
    assert clean("größe 数据.npy") == "größe 数据.npy"


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_printed(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(text).encode().decode() == clean(text)
    assert clean_lines(text).count("\n") == text.count("\n")


def test_a_long_text_is_cut() -> None:
    assert (shorten("abcdef", 4), shorten("abcd", 4)) == ("abc…", "abcd")


@pytest.mark.parametrize("kind", [TensorprobeError, DumpError])
def test_an_error_that_quotes_a_name_shows_it_harmlessly_in_a_traceback_too(kind: type[TensorprobeError]) -> None:
    error = kind(f"{HOSTILE}\nis missing")
    assert str(error) == f"{clean(HOSTILE)}\nis missing"
    assert "\x1b" not in "".join(traceback.format_exception(error))


def test_a_message_that_quotes_a_name_shows_it_harmlessly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = StandardError()
    monkeypatch.setattr(logging.getLogger("tensorprobe"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    handler.emit(logging.LogRecord("tensorprobe", logging.WARNING, "", 0, "%s is gone", (HOSTILE,), None))
    assert capsys.readouterr().err == f"{clean(HOSTILE)} is gone\n"
