"""The pytest plugin: the fixture `golden_run` and the option `--tensorprobe-update`.

pytest imports this file in every run of every project that has tensorprobe installed: it imports nothing that records
or compares before a test asks for the fixture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tensorprobe.compare.result import Comparison

_OPTION = "--tensorprobe-update"
_PROPERTY = "tensorprobe"


class Golden(Protocol):
    """What the fixture gives."""

    def __call__(self, function: Any, *inputs: Any, name: str | None = None, **options: Any) -> Comparison | None:
        """Record what `function` computes from `inputs`, and hold it against the golden record of this test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tensorprobe").addoption(
        _OPTION,
        action="store_true",
        help="write the golden records of the tests that use golden_run, instead of comparing with them",
    )


@pytest.fixture
def golden_run(request: pytest.FixtureRequest) -> Golden:
    """Compare what a model or a function computes with the golden record beside the test.

    def test_model(golden_run):
        golden_run(model, x)
    """
    from tensorprobe.check.golden_run import GoldenRun, describe_failure
    from tensorprobe.errors import TensorprobeError, UsageError

    test = request.node.nodeid.partition("::")[2]
    runs = GoldenRun(request.path, test)
    is_update = request.config.getoption(_OPTION)

    def run(function: Any, *inputs: Any, name: str | None = None, **options: Any) -> Comparison | None:
        __tracebackhide__ = True
        try:
            one = runs.name_run(name)
            path = runs.path_of(one)
            if is_update:
                word = "written" if runs.update(one, function, inputs, options) else "unchanged"
                request.node.user_properties.append((_PROPERTY, f"{word}: {_relative(path, request.config)}"))
                return None
            if not path.exists():
                pytest.fail(_describe_missing(path, one, request), pytrace=False)
            found = runs.compare(one, function, inputs, options)
        except TensorprobeError as error:
            if isinstance(error, UsageError) and error.__cause__ is not None:
                raise  # what the test runs has failed: its traceback is wanted
            pytest.fail(str(error), pytrace=False)
        if not found:
            pytest.fail(describe_failure(found), pytrace=False)
        return found

    return run


def _describe_missing(path: Path, run: str, request: pytest.FixtureRequest) -> str:
    """How to make one; and those that no test of the file has any more, because a test may have been renamed."""
    import json

    where = _relative(path, request.config)
    text = f"{run} has no golden record: {where} does not exist. Make it with: pytest {_OPTION}"
    left = []
    for other in sorted(path.parent.glob("*.json")):
        try:
            test = json.loads(other.read_text(encoding="utf-8"))["test"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged one says so in its own test
        if not _is_defined(str(test), request.module):
            left.append(f"{other.name} (of {test})")
    if left:
        text += (
            f"\nNo test has these records any more: {', '.join(left)}. If this test was renamed, remove the old record "
            "and review the new one against it."
        )
    return text


def _is_defined(test: str, module: Any) -> bool:
    place = module
    for part in test.partition("[")[0].split("::"):
        if not hasattr(place, part):
            return place is not module and callable(place) and not isinstance(place, type)  # the name of a run
        place = getattr(place, part)
    return True


def _relative(path: Path, config: pytest.Config) -> str:
    return str(path.relative_to(config.rootpath)) if path.is_relative_to(config.rootpath) else str(path)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was written, also by the workers of xdist, whose reports come here."""
    reports = [one for found in terminalreporter.stats.values() for one in found if getattr(one, "when", "") == "call"]
    lines = [text for one in reports for name, text in one.user_properties if name == _PROPERTY]
    if lines:
        terminalreporter.section("golden records of tensorprobe")
        for line in sorted(set(lines)):
            terminalreporter.write_line(line)
