"""Commands and JSON on the pages are such as the program takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from tensorprobe.cli.main import app
from tensorprobe.config import load_config
from tests.docs.block import PAGES, find_blocks, name_of

_COMMAND = re.compile(r"^(?:\$ )?tensorprobe (?P<rest>[a-z].*(?:\n +\[.*)*)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def unknown_words(text: str) -> list[str]:
    """What the commands in a text name and the program does not have: commands and options."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = []
    for rest in (match["rest"] for match in _COMMAND.finditer(text)):
        name, _, arguments = re.split(r" [|#]|&&|\|\|", rest)[0].partition(" ")
        if name not in commands:
            found.append(name)
            continue
        if name == "run":  # what comes behind the program is for the program
            arguments = re.split(r" (?:SCRIPT|torchrun|msrun|-m|\S+\.py)", f" {arguments}")[0]
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
        found += [option for option in _OPTION.findall(arguments) if option not in known]
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    blocks = [block for block in find_blocks(page) if block.language in ("", "sh", "bash", "console", "text")]
    inline = "\n".join(re.findall(r"`(tensorprobe [a-z][^`]*)`", page.read_text(encoding="utf-8")))
    assert unknown_words("\n".join([*(block.text for block in blocks), inline])) == []


def test_a_command_or_an_option_that_there_is_not_is_found() -> None:
    text = "$ tensorprobe compare a --no-such X  # --not-this\ntensorprobe cmpare a b\ntensorprobe show a | jq -r ."
    assert unknown_words(text) == ["--no-such", "cmpare"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_json_on_a_page_can_be_read_and_a_configuration_loads(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in find_blocks(page) if block.language == "json"):
        content = json.loads(block.text)
        if "task" in content and "data" not in content:
            path = tmp_path / f"config{number}.json"
            path.write_text(block.text)
            load_config(path)


def test_a_reason_why_a_block_is_not_run_stands_before_a_block() -> None:
    """Elsewhere it would say nothing, and leave nothing out."""
    for page in PAGES:
        written = re.findall(r"^<!-- not run: (.+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert written == [block.reason for block in find_blocks(page) if block.reason is not None], page
    assert any(block.reason for page in PAGES for block in find_blocks(page))
