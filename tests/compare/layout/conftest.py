"""Runs of the model in every layout, each recorded once, for the tests that ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compare.layout.case import REFERENCES, STATISTICS
from tests.compare.layout.eight import EIGHT_REFERENCES
from tests.compare.layout.recorded import Recorded
from tests.compare.layout.worker import record
from tests.integration.torchrun import run_ranks

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    def record_one(name: str, folder: Path) -> None:
        task = "statistics" if name.endswith(STATISTICS) else "tensor"
        record(REFERENCES[name.removesuffix(STATISTICS)](), folder / name, task=task)

    return Recorded(tmp_path_factory.mktemp("whole"), record_one)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("two"), lambda name, folder: run_worker(2, folder, name))


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("four"), lambda name, folder: run_worker(4, folder, name))


def run_worker(ranks: int, folder: Path, name: str) -> None:
    run_ranks(ranks, WORKER, str(folder), name)


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eight")
    for name, make in EIGHT_REFERENCES.items():
        record(make(), folder / f"{name} alone")
    run_ranks(8, WORKER, str(folder))
    return folder
