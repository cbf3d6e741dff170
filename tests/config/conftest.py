"""Every test runs in an empty working directory, where `write_config` puts the file that the test is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

WriteConfig = Callable[..., str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write_config(folder: Path) -> WriteConfig:
    """Write these keys, or this text, as ./config.json, and give the path as a user would."""

    def write(text: str | None = None, **keys: object) -> str:
        Path("config.json").write_text(json.dumps(keys) if text is None else text, encoding="utf-8")
        return "./config.json"

    return write
