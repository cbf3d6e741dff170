"""A frame of a stack as a line."""

from __future__ import annotations

import pytest

from tensorprobe.store.frame import describe_frame


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ("File /x/model.py, line 18, in forward, \n x = self.fc(x)", "/x/model.py:18 in forward: x = self.fc(x)"),
        ("File a, line 1, in b.py, line 2, in f,\n", "a, line 1, in b.py:2 in f"),
        ("File /x/model.py, line 18, in <lambda>\n  f(\n  x)", "/x/model.py:18 in <lambda>: f(\n  x)"),
        ("File /x/model.py, line eighteen, in f, \n x", "File /x/model.py, line eighteen, in f, \n x"),
        ("somewhere", "somewhere"),
        ("", ""),
    ],
)
def test_a_frame_is_a_place_and_a_line_of_code(frame: str, line: str) -> None:
    assert describe_frame(frame) == line


@pytest.mark.parametrize(
    "frame", ["File a" + ", line 1, in f" * 100_000, "File a, line 1, in f" + " " * 1_000_000, "x" * 1_000_000]
)
def test_a_frame_of_a_million_characters_is_read_in_one_pass_and_cut(frame: str) -> None:
    assert len(describe_frame(frame)) <= 4_000
    assert len(describe_frame(f"{frame}\nx")) <= 4_000
