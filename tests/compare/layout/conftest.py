"""Runs of the model in every layout, recorded once, for the tests that ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from tests.compare.layout.case import IN_SHORT, REFERENCES, RIGHT, SMALL, STATISTICS, WRONG
from tests.compare.layout.eight import EIGHT_REFERENCES
from tests.compare.layout.four import FOUR
from tests.compare.layout.recorded import Recorded
from tests.compare.layout.worker import record
from tests.integration.torchrun import run_ranks
from tests.length import IS_LONG

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    def record_here(folder: Path, names: Iterable[str]) -> None:
        for name in names:
            task = "statistics" if name.endswith(STATISTICS) else "tensor"
            record(REFERENCES[name.removesuffix(STATISTICS)](), folder / name, task=task)

    return Recorded(tmp_path_factory.mktemp("whole"), record_here)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    names = (*RIGHT, *WRONG)
    everything = (*names, *(name + STATISTICS for name in names if name not in SMALL))
    return Recorded(
        tmp_path_factory.mktemp("two"),
        partial(run_worker, 2),
        everything if IS_LONG else IN_SHORT,
    )


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(
        tmp_path_factory.mktemp("four"),
        partial(run_worker, 4),
        (*FOUR, *(name + STATISTICS for name in FOUR)),
    )


def run_worker(ranks: int, folder: Path, names: Iterable[str]) -> None:
    run_ranks(ranks, WORKER, str(folder), *names)


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eight")
    for name, make in EIGHT_REFERENCES.items():
        record(make(), folder / f"{name} alone")
    run_ranks(8, WORKER, str(folder))
    return folder
