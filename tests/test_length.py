"""The rules that keep the load of the machine out of the tests hold for all of them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.length import PATIENCE_SECONDS, wait_until

TESTS = Path(__file__).parent


@cache
def keywords() -> list[tuple[str, ast.keyword]]:
    """All keyword arguments in these tests, with where they stand."""
    return [
        (f"{path.relative_to(TESTS)}:{node.value.lineno}", node)
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword)
    ]


def test_hypothesis_has_no_deadline_and_no_check_for_slowness() -> None:
    assert settings().deadline is None and HealthCheck.too_slow in settings().suppress_health_check


def test_no_test_sets_a_deadline_or_turns_the_check_for_slowness_on_again() -> None:
    for place, keyword in keywords():
        if keyword.arg == "deadline":
            assert ast.unparse(keyword.value) == "None", place
        if keyword.arg == "suppress_health_check":
            assert "HealthCheck.too_slow" in ast.unparse(keyword.value), place


def test_no_process_has_less_time_than_all_others() -> None:
    """A number of seconds is a guess at how fast the machine is."""
    assert [
        place for place, keyword in keywords() if keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant)
    ] == []


def test_what_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.length.PATIENCE_SECONDS", 0.0)
    with pytest.raises(TimeoutError, match="has not come within"):
        wait_until(lambda: False)


MARKED = """
import pytest

@pytest.mark.long
def test_long(): pass

def test_short(): pass

@pytest.mark.some(3)
@pytest.mark.parametrize("case", range(4))
def test_some(case): assert case in (0, 3) or %s
"""


@pytest.mark.parametrize(("length", "said"), [("", "3 passed, 3 deselected"), ("1", "6 passed")], ids=["short", "long"])
def test_what_is_marked_long_runs_in_the_long_form_only(tmp_path: Path, length: str, said: str) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED % bool(length))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--strict-markers", "-o", "markers=long\nsome"]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS.parent / "src")])
    environment = {**os.environ, "TENSORPROBE_LONG": length, "PYTHONPATH": paths}
    done = subprocess.run(
        [*command, "test_marked.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert said in done.stdout, done.stdout + done.stderr
