"""The text of every error about config.json and the arguments: what, where, what is accepted, what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.config import load_config
from tensorprobe.errors import ConfigError
from tests.config.conftest import WriteConfig

NUMBER = (
    'is not an integer from 0 up, a string like "3", or a range like "4-6", "0-1000:100", "every 100" or '
    '"every 100 from 50"'
)
COMMON_KEYS = (
    "task, dump_path, rank, step, level, async_dump, extra_info, api_yaml, on_nonfinite, max_disk, min_free, "
    "flight_recorder, tensorboard, compiled"
)
SECTION_KEYS = "scope, list, data_mode, summary_mode, tensor_list"
DATA_MODES = "all, forward, backward, input, output"
NAME_ADVICE = "write one as in dump.json, like Functional.linear.0.forward or Module.conv1.Conv2d.forward.0"


def error_of(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments, **options)
    return str(caught.value)


# key, value, what the error says before the place, and after it
WRONG_COMMON_VALUES = [
    ("level", "L3", "level 'L3' is not one of L0, L1, mix, debug", ""),
    ("level", "L2", "level 'L2' is not one of L0, L1, mix, debug", ""),
    ("level", "l1", "level 'l1' is not one of L0, L1, mix, debug", '; did you mean "L1"?'),
    ("level", "Mix", "level 'Mix' is not one of L0, L1, mix, debug", '; did you mean "mix"?'),
    ("level", 1, "level 1 is not one of L0, L1, mix, debug", ""),
    ("level", ["L1"], "level ['L1'] is not one of L0, L1, mix, debug", ""),
    ("task", "overflow_check", "task 'overflow_check' is not one of statistics, tensor, structure, replay", ""),
    (
        "task",
        "tensors",
        "task 'tensors' is not one of statistics, tensor, structure, replay",
        '; did you mean "tensor"?',
    ),
    ("task", "", "task '' is not one of statistics, tensor, structure, replay", ""),
    ("step", True, f"step True {NUMBER}", ""),
    ("step", -1, f"step -1 {NUMBER}", ""),
    ("step", 1.5, f"step 1.5 {NUMBER}", ""),
    ("step", [0, "x"], f"step 'x' {NUMBER}", ""),
    ("step", ["4 - 6"], f"step '4 - 6' {NUMBER}", ""),
    ("step", {"from": 1}, f"step {{'from': 1}} {NUMBER}", ""),
    ("rank", ["6-4"], "rank '6-4' ends before it begins", '; write "4-6"'),
    ("rank", "0-9999999", "rank '0-9999999' holds more than 1000000 numbers", "; leave the key out for no filter"),
    ("rank", [[0]], f"rank [0] {NUMBER}", ""),
]

WRONG_SECTION_VALUES = [
    ("summary_mode", "crc", "summary_mode 'crc' is not one of statistics, md5, hash", ""),
    ("summary_mode", "MD5", "summary_mode 'MD5' is not one of statistics, md5, hash", '; did you mean "md5"?'),
    ("summary_mode", ["max"], "summary_mode ['max'] is not one of statistics, md5, hash", ""),
    ("data_mode", ["forwards"], f"data_mode 'forwards' is not one of {DATA_MODES}", '; did you mean "forward"?'),
    ("data_mode", [1], f"data_mode 1 is not one of {DATA_MODES}", ""),
    ("data_mode", 1, f"data_mode 1 is not a list from {DATA_MODES}", ""),
    (
        "data_mode",
        ["all", "input"],
        """data_mode ['all', 'input'] has "all" beside others""",
        '; give "all" alone, or leave it out',
    ),
    ("list", "relu", "list 'relu' is not a list of strings", '; write ["relu"]'),
    ("list", 3, "list 3 is not a list of strings", ""),
    ("list", ["relu", ""], "list '' is not a non-empty string", "; correct it or take it out of the list"),
    ("tensor_list", [0], "tensor_list 0 is not a non-empty string", "; correct it or take it out of the list"),
    (
        "scope",
        ["Tensor.add.0.forward"],
        "scope ['Tensor.add.0.forward'] has 1 name",
        "; give none, or exactly two: the first and the last call to record",
    ),
    (
        "scope",
        ["a", "b", "c"],
        "scope ['a', 'b', 'c'] has 3 names",
        "; give none, or exactly two: the first and the last call to record",
    ),
    (
        "scope",
        ["Tensor.add.0.forward", "conv1"],
        "scope 'conv1' is not the name of a record",
        f"; {NAME_ADVICE}",
    ),
]


@pytest.mark.parametrize(("key", "value", "problem", "advice"), WRONG_COMMON_VALUES)
def test_a_wrong_value_at_the_top_of_the_file(
    write_config: WriteConfig, key: str, value: object, problem: str, advice: str
) -> None:
    assert error_of(write_config(**{key: value})) == f'{problem} (in ./config.json, key "{key}"){advice}'


@pytest.mark.parametrize("section", ["statistics", "tensor", "structure", "replay"])
@pytest.mark.parametrize(("key", "value", "problem", "advice"), WRONG_SECTION_VALUES)
def test_a_wrong_value_in_any_section_of_the_file(
    write_config: WriteConfig, section: str, key: str, value: object, problem: str, advice: str
) -> None:
    text = error_of(write_config(**{section: {key: value}}))
    assert text == f'{problem} (in ./config.json, key "{section}.{key}"){advice}'


@pytest.mark.parametrize(("key", "value", "problem", "advice"), WRONG_COMMON_VALUES + WRONG_SECTION_VALUES)
def test_a_wrong_value_as_an_argument(key: str, value: object, problem: str, advice: str) -> None:
    assert error_of(**{key: value}) == f'{problem} (argument "{key}"){advice}'


@pytest.mark.parametrize("key", ["async_dump", "extra_info"])
def test_a_switch_is_true_or_false(write_config: WriteConfig, key: str) -> None:
    place = f'(in ./config.json, key "{key}")'
    assert error_of(write_config(**{key: 1})) == f"{key} 1 is not one of true, false {place}"
    quoted = error_of(write_config(**{key: "true"}))
    assert quoted == f"{key} 'true' is not one of true, false {place}; write it without quotes"
    assert error_of(**{key: 0}) == f'{key} 0 is not one of True, False (argument "{key}")'


@pytest.mark.parametrize("key", ["dump_path", "api_yaml"])
def test_what_is_no_path(write_config: WriteConfig, key: str) -> None:
    text = error_of(write_config(**{key: 3}))
    assert text == f'{key} 3 is not a path (in ./config.json, key "{key}"); give a string'
    for value in (3, b"dump", "\0", ["dump"]):
        advice = "give a string or a pathlib.Path"
        assert error_of(**{key: value}) == f'{key} {value!r} is not a path (argument "{key}"); {advice}'


@pytest.mark.parametrize("value", [3, "", b"config.json", {"level": "L1"}])
def test_a_config_path_that_is_no_path(value: object) -> None:
    advice = "give a string or a pathlib.Path"
    assert error_of(value) == f'config_path {value!r} is not a path (argument "config_path"); {advice}'


def test_a_dump_path_that_is_a_file(write_config: WriteConfig) -> None:
    text = error_of(write_config(dump_path="config.json"))
    place = '(in ./config.json, key "dump_path")'
    assert text == f"dump_path 'config.json' is a file {place}; name a folder; it is made if it does not exist"


def test_an_api_yaml_that_does_not_exist(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf/config.json").write_text('{"api_yaml": "apis.yaml"}')
    looked_for = f"looked for {folder / 'conf/apis.yaml'} and {folder / 'apis.yaml'}"
    place = '(in conf/config.json, key "api_yaml")'
    assert error_of("conf/config.json") == f"api_yaml 'apis.yaml' is not a file {place}; {looked_for}"
    argument_error = f"api_yaml 'conf' is not a file (argument \"api_yaml\"); looked for {folder / 'conf'}"
    assert error_of(api_yaml="conf") == argument_error


UNKNOWN_KEYS = [
    (
        {"levl": "L1"},
        'unknown key "levl" in ./config.json; did you mean "level"? '
        f"Accepted keys: {COMMON_KEYS}, statistics, tensor, structure, replay",
    ),
    (
        {"colour": 1},
        f'unknown key "colour" in ./config.json. Accepted keys: {COMMON_KEYS}, statistics, tensor, structure, replay',
    ),
    (
        {"summary_mode": "md5"},
        'unknown key "summary_mode" in ./config.json; it belongs in the section of the task, "statistics" or "tensor". '
        f"Accepted keys: {COMMON_KEYS}, statistics, tensor, structure, replay",
    ),
    (
        {"statistics": {"summry_mode": "md5"}},
        'unknown key "summry_mode" in section "statistics" of ./config.json; did you mean "summary_mode"? '
        f"Accepted keys: {SECTION_KEYS}",
    ),
    (
        {"task": "statistics", "tensor": {"colour": 1}},
        f'unknown key "colour" in section "tensor" of ./config.json. Accepted keys: {SECTION_KEYS}',
    ),
    (
        {"statistics": {"level": "L1"}},
        'unknown key "level" in section "statistics" of ./config.json; it belongs at the top level. '
        f"Accepted keys: {SECTION_KEYS}",
    ),
    (
        {"tensor": []},
        'tensor [] is not an object (in ./config.json, key "tensor"); write "tensor": {"list": [], …}',
    ),
]


@pytest.mark.parametrize(("keys", "text"), UNKNOWN_KEYS)
def test_an_unknown_key_in_the_file(write_config: WriteConfig, keys: dict[str, Any], text: str) -> None:
    assert error_of(write_config(**keys)) == text


def test_an_unknown_argument() -> None:
    accepted = f"Accepted arguments: config_path, {COMMON_KEYS}, {SECTION_KEYS}"
    assert error_of(summry_mode="md5") == f'unknown argument "summry_mode"; did you mean "summary_mode"? {accepted}'
    assert error_of(confg_path="a") == f'unknown argument "confg_path"; did you mean "config_path"? {accepted}'
    assert error_of(seed=1234) == f'unknown argument "seed". {accepted}'


JSON_ADVICE = "correct it there; JSON has no comments and no comma before a closing bracket"

WRONG_FILES = [
    (
        b'{"level": "L1",\n}',
        "./config.json is not valid JSON: {json} (line 2, column 1); " + JSON_ADVICE,
    ),
    (b"", "./config.json is not valid JSON: Expecting value (line 1, column 1); " + JSON_ADVICE),
    (b"[1, 2]", './config.json holds [1, 2], not an object; write {"task": "statistics", …}'),
    (b"null", './config.json holds None, not an object; write {"task": "statistics", …}'),
    (b'{"dump_path": "\xff"}', "./config.json is not UTF-8 at byte 15; save it as UTF-8"),
    (
        b'{"level": "L0", "level": "L1"}',
        './config.json has the key "level" twice in one object; keep one of them',
    ),
    (
        b'{"tensor": {"list": [], "list": []}}',
        './config.json has the key "list" twice in one object; keep one of them',
    ),
]


@pytest.mark.parametrize(("content", "text"), WRONG_FILES)
def test_a_file_that_is_no_configuration(folder: Path, content: bytes, text: str) -> None:
    (folder / "config.json").write_bytes(content)
    # Python 3.13 words this one anew.
    wordings = ("Expecting property name enclosed in double quotes", "Illegal trailing comma before end of object")
    assert error_of("./config.json") in {
        text.replace("{json}", wordings[0]),
        text.replace("{json} (line 2, column 1)", f"{wordings[1]} (line 1, column 15)"),
    }


@pytest.mark.parametrize("content", ["[" * 100_000, '{"step": ' + "1" * 5000 + "}"])
def test_a_file_that_is_too_much_for_json(write_config: WriteConfig, content: str) -> None:
    assert error_of(write_config(content)).startswith("./config.json cannot be read as JSON: ")


def test_a_file_that_is_not_there(folder: Path) -> None:
    looked_for = f"looked for {folder / 'confg.json'}"
    assert error_of("./confg.json") == f"./confg.json does not exist ({looked_for}); correct the path"


def test_a_folder_instead_of_a_file(folder: Path) -> None:
    assert error_of(folder) == f"{folder} is a folder; name a file in it"


def test_a_file_below_a_file(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    text = error_of("config.json/config.json")
    assert text == "config.json/config.json cannot be read: Not a directory; give a file that you may read"


def test_a_long_value_does_not_hide_the_rest() -> None:
    text = error_of(level="x" * 10_000)
    assert len(text) < 200
    assert text.endswith('… is not one of L0, L1, mix, debug (argument "level")')


@pytest.mark.parametrize("depth", [900, 3_000, 100_000])
@pytest.mark.parametrize("text", ["%s", '{"level": %s}', '{"statistics": {"scope": %s}}', '{"rank": [%s]}'])
def test_a_file_that_is_nested_beyond_all_reason_is_one_error(write_config: WriteConfig, text: str, depth: int) -> None:
    assert len(error_of(write_config(text % ("[" * depth + "]" * depth)))) < 300


def test_an_integer_of_thousands_of_digits_is_one_error(write_config: WriteConfig) -> None:
    assert error_of(rank=[[10**5_000]]) == f'rank a list that is too large {NUMBER} (argument "rank")'
    assert "config.json cannot be read as JSON" in error_of(write_config(f'{{"rank": {"9" * 5_000}}}'))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in its file system")
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "config.json")
    assert error_of("config.json") == ("config.json cannot be read: not a regular file; give a file that you may read")
