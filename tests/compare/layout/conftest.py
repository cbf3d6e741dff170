"""Runs of the model in every layout, recorded once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compare.layout.case import (
    LONG_RIGHT,
    LONG_WRONG,
    REFERENCES,
    RIGHT,
    SHORT_RIGHT,
    SHORT_WRONG,
    SMALL,
    STATISTICS,
    STATISTICS_RIGHT,
    STATISTICS_WRONG,
    WRONG,
)
from tests.compare.layout.eight import EIGHT_REFERENCES
from tests.compare.layout.four import FOUR
from tests.compare.layout.worker import record
from tests.integration.torchrun import run_ranks

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for name, make in REFERENCES.items():
        record(make(), folder / name)
        record(make(), folder / (name + STATISTICS), task="statistics")
    return folder


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    statistics = [name + STATISTICS for name in (*STATISTICS_RIGHT, *STATISTICS_WRONG)]
    run_ranks(2, WORKER, str(folder), *SHORT_RIGHT, *SHORT_WRONG, *statistics)
    return folder


@pytest.fixture(scope="session")
def two_more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_more")
    short = (*STATISTICS_RIGHT, *STATISTICS_WRONG, *SMALL)
    statistics = [name + STATISTICS for name in (*RIGHT, *WRONG) if name not in short]
    run_ranks(2, WORKER, str(folder), *LONG_RIGHT, *LONG_WRONG, *statistics)
    return folder


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    run_ranks(4, WORKER, str(folder), *FOUR, *(name + STATISTICS for name in FOUR))
    return folder


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eight")
    for name, make in EIGHT_REFERENCES.items():
        record(make(), folder / f"{name} alone")
    run_ranks(8, WORKER, str(folder))
    return folder
