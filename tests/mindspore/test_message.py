"""Messages: one line after each step, through `logging`, where the program wants them."""

from __future__ import annotations

import logging
import re
import shlex
from pathlib import Path

import pytest
from mindspore import ops

from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore.program import DUMP, make_net, train_step


def record(debugger: PrecisionDebugger) -> None:
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.stop()
    debugger.step()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_after_each_step_one_line_says_where_how_many_how_long_and_what_next(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="mix")
    with caplog.at_level(logging.INFO):
        record(debugger)
        record(debugger)
    assert len(caplog.records) == 2 and {each.name for each in caplog.records} == {"tensorprobe"}
    for step, line in enumerate(lines(caplog)):
        found = re.fullmatch(r"step (\d): (\d+) records in ([\d.]+) s, in (\S+)\. Next: tensorprobe show (\S+)", line)
        folder = str((DUMP / f"step{step}" / "rank").absolute())
        assert found is not None and found.group(1) == str(step)
        assert found.group(2) == str(recorded(Path(folder))) and float(found.group(3)) < 60
        assert found.group(4) == found.group(5) == folder


def recorded(folder: Path) -> int:
    return (folder / "dump.json").read_text().count("\n") - 2


def test_the_command_is_quoted_for_the_shell(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path="a dump+ö")
    with caplog.at_level(logging.INFO):
        record(debugger)
    command = lines(caplog)[0].split("Next: ")[1]
    assert shlex.split(command) == ["tensorprobe", "show", str(Path("a dump+ö/step0/rank").absolute())]


def test_a_step_that_is_filtered_out_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, step=[5])
    with caplog.at_level(logging.INFO):
        record(debugger)
    assert lines(caplog) == []


def test_level_debug_says_it_too(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="debug")
    with caplog.at_level(logging.INFO):
        debugger.save(ops.ones(1), "x")
        debugger.step()
    assert re.match(r"step 0: 1 record in \d+\.\d\d s, in ", lines(caplog)[0])


def test_the_level_of_a_program_that_has_configured_logging_holds(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    with caplog.at_level(logging.WARNING):
        record(debugger)
    assert lines(caplog) == []


def test_the_level_of_the_logger_itself_holds(caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=DUMP)
    with caplog.at_level(logging.WARNING), caplog.at_level(logging.INFO, logger="tensorprobe"):
        record(debugger)
    with caplog.at_level(logging.INFO), caplog.at_level(logging.WARNING, logger="tensorprobe"):
        record(debugger)
    assert len(lines(caplog)) == 1
