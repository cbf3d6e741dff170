"""docs/config.md says what the code does: its examples load, its errors are the real ones, no key is missing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorprobe.config import CaptureConfig, load_api_list, load_config
from tensorprobe.config.api_list import PREFIX_OF_CATEGORY
from tensorprobe.errors import ConfigError
from tests.config.conftest import WriteConfig

PAGE = (Path(__file__).parents[2] / "docs/config.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", blocks("json"))
def test_the_examples_of_config_json_load(write_config: WriteConfig, example: str) -> None:
    config = load_config(write_config(example))
    assert config.step == {0, 10, 100, 101, 102}


@pytest.mark.parametrize("example", blocks("yaml"))
def test_the_examples_of_the_api_list_load(folder: Path, example: str) -> None:
    (folder / "apis.yaml").write_text(example)
    apis = load_api_list(folder / "apis.yaml")
    assert not apis.decide("Functional", "relu", default=True)
    assert apis.decide("Tensor", "size", default=False)


def test_every_key_has_a_row() -> None:
    rows = re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in dataclasses.fields(CaptureConfig)} <= named
    assert set(PREFIX_OF_CATEGORY) <= named


def test_the_errors_on_the_page_are_the_real_ones(write_config: WriteConfig, folder: Path) -> None:
    (folder / "apis.yaml").write_text("functonal: [conv1d]")
    mistakes: list[Callable[[], object]] = [
        lambda: load_config(write_config(level="L3")),
        lambda: load_config(level="Mix"),
        lambda: load_config(write_config(rank=["6-4"])),
        lambda: load_config(write_config(statistics={"list": "relu"})),
        lambda: load_config(write_config(statistics={"summry_mode": "md5"})),
        lambda: load_config(write_config('{"level": "L0", "level": "L1"}')),
        lambda: load_api_list(Path("apis.yaml")),
    ]
    assert [text_of(mistake) for mistake in mistakes] == blocks("text")[0].splitlines()


def text_of(mistake: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        mistake()
    return str(caught.value)


def test_the_warning_on_the_page_is_the_real_one(write_config: WriteConfig, caplog: pytest.LogCaptureFixture) -> None:
    load_config(write_config(seed=1234))
    assert caplog.messages == blocks("text")[1].splitlines()
