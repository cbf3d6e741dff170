from __future__ import annotations

import logging

import pytest

from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.config.known_key import COMMON_READERS, SECTION_READERS
from tensorprobe.config.msprobe_key import MSPROBE_COMMON_KEYS, MSPROBE_SECTION_KEYS
from tests.config.conftest import WriteConfig


def warning(key: str) -> tuple[str, int, str]:
    text = f'./config.json: the key "{key}" of msprobe has no counterpart in tensorprobe and is ignored'
    return ("tensorprobe", logging.WARNING, text)


@pytest.mark.parametrize("key", sorted(MSPROBE_COMMON_KEYS))
def test_a_key_that_only_msprobe_knows_is_one_warning(
    write_config: WriteConfig, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    assert load_config(write_config(**{key: {"anything": 1}})) == CaptureConfig()
    assert caplog.record_tuples == [warning(key)]


@pytest.mark.parametrize("key", sorted(MSPROBE_SECTION_KEYS))
def test_so_it_is_in_a_section_of_a_task_that_is_not_chosen_too(
    write_config: WriteConfig, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    assert load_config(write_config(task="statistics", tensor={key: "anything"})) == CaptureConfig()
    assert caplog.record_tuples == [warning(f"tensor.{key}")]


def test_a_file_of_an_older_msprobe_loads(write_config: WriteConfig, caplog: pytest.LogCaptureFixture) -> None:
    file = write_config(
        task="tensor",
        dump_path="/home/data_dump",
        rank=[],
        step=[],
        level="L1",
        seed=1234,
        is_deterministic=False,
        tensor={"scope": [], "list": [], "data_mode": ["all"], "backward_input": [], "file_format": "npy"},
        overflow_check={"overflow_nums": 1},
        run_ut={"white_list": [], "black_list": [], "error_data_path": "./"},
    )
    assert load_config(file).task == "tensor"
    keys = ["seed", "is_deterministic", "overflow_check", "run_ut", "tensor.backward_input", "tensor.file_format"]
    assert caplog.record_tuples == [warning(key) for key in keys]


def test_no_key_is_both_ours_and_ignored() -> None:
    assert not MSPROBE_COMMON_KEYS & {*COMMON_READERS, *SECTION_READERS, "statistics", "tensor", "structure"}
    assert not MSPROBE_SECTION_KEYS & {*COMMON_READERS, *SECTION_READERS}
