from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import tensorprobe.errors
from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.errors import ConfigError
from tests.config.conftest import WriteConfig

FIRST, LAST = "Functional.linear.0.forward", "Module.conv1.Conv2d.forward.0"

MSPROBE_DEFAULT_FILE = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
}


def test_without_a_file_and_arguments_the_defaults_hold() -> None:
    config = load_config()
    assert config == CaptureConfig()
    assert (config.task, config.level, config.dump_path) == ("statistics", "L1", Path("./dump_path"))


def test_the_file_that_msprobe_ships_is_the_defaults(
    write_config: WriteConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_config(write_config(**MSPROBE_DEFAULT_FILE)) == CaptureConfig()
    assert caplog.messages == []


def test_every_key_of_a_file_arrives(write_config: WriteConfig) -> None:
    Path("apis.yaml").write_text("functional: [conv1d]")
    section = {
        "scope": [FIRST, LAST],
        "list": ["relu"],
        "data_mode": ["forward", "input"],
        "summary_mode": "md5",
        "tensor_list": ["conv1"],
    }
    file = write_config(
        task="statistics",
        dump_path="somewhere",
        rank=[0],
        step=[1, "3", "5-7"],
        level="mix",
        async_dump=True,
        extra_info=False,
        api_yaml="apis.yaml",
        statistics=section,
    )
    assert load_config(file) == CaptureConfig(
        task="statistics",
        dump_path=Path("somewhere"),
        rank=frozenset({0}),
        step=frozenset({1, 3, 5, 6, 7}),
        level="mix",
        async_dump=True,
        extra_info=False,
        scope=(FIRST, LAST),
        list=("relu",),
        data_mode=frozenset({"forward", "input"}),
        summary_mode="md5",
        tensor_list=("conv1",),
        api_yaml=Path("apis.yaml"),
    )


def test_arguments_win_over_the_file(write_config: WriteConfig) -> None:
    file = write_config(task="tensor", dump_path="from_file", level="L0", step=[1], tensor={"list": ["from_file"]})
    config = load_config(
        file, task="statistics", dump_path="from_argument", level="mix", step=[2], list=["from_argument"]
    )
    assert config == CaptureConfig(
        task="statistics",
        dump_path=Path("from_argument"),
        level="mix",
        step=frozenset({2}),
        list=("from_argument",),
    )


def test_an_argument_that_is_none_leaves_the_file_its_say(write_config: WriteConfig) -> None:
    file = write_config(level="L0", statistics={"summary_mode": "hash"})
    config = load_config(file, level=None, summary_mode=None)
    assert (config.level, config.summary_mode) == ("L0", "hash")


def test_an_empty_list_as_an_argument_lifts_the_filter_of_the_file(write_config: WriteConfig) -> None:
    assert load_config(write_config(step=[4]), step=[]).step == frozenset()


def test_only_the_section_of_the_task_counts(write_config: WriteConfig) -> None:
    file = write_config(statistics={"list": ["a"]}, tensor={"list": ["b"]}, structure={"list": ["c"]})
    assert load_config(file).list == ("a",)
    assert load_config(file, task="tensor").list == ("b",)
    assert load_config(file, task="structure").list == ("c",)


def test_task_structure_without_a_section_has_no_filters(write_config: WriteConfig) -> None:
    assert load_config(write_config(task="structure", statistics={"list": ["a"]})) == CaptureConfig(task="structure")


@pytest.mark.parametrize(
    "key", ["task", "dump_path", "rank", "step", "level", "async_dump", "extra_info", "api_yaml", "on_nonfinite"]
)
def test_null_in_the_file_is_the_default(write_config: WriteConfig, key: str) -> None:
    assert load_config(write_config(**{key: None})) == CaptureConfig()


@pytest.mark.parametrize("section", [None, {}, dict.fromkeys(["scope", "list", "data_mode", "summary_mode"])])
def test_null_and_empty_sections_are_no_filter(write_config: WriteConfig, section: object) -> None:
    assert load_config(write_config(statistics=section)) == CaptureConfig()


@pytest.mark.parametrize("key", ["dump_path", "api_yaml"])
def test_an_empty_path_is_the_default(write_config: WriteConfig, key: str) -> None:
    assert load_config(write_config(**{key: ""})) == CaptureConfig()


def test_an_empty_dump_path_as_an_argument_leaves_the_file_its_say(write_config: WriteConfig) -> None:
    assert load_config(write_config(dump_path="from_file"), dump_path="").dump_path == Path("from_file")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["all"], set()),
        ("all", set()),
        ([], set()),
        ("forward", {"forward"}),
        (["forward", "output"], {"forward", "output"}),
        (["input", "input"], {"input"}),
    ],
)
def test_data_mode(write_config: WriteConfig, written: object, meant: set[str]) -> None:
    assert load_config(write_config(statistics={"data_mode": written})).data_mode == meant
    assert load_config(data_mode=written).data_mode == meant


def test_paths_may_be_path_objects(write_config: WriteConfig) -> None:
    write_config(level="L0")
    config = load_config(Path("config.json"), dump_path=Path("a b/ü+"))
    assert (config.level, config.dump_path) == ("L0", Path("a b/ü+"))


def test_the_dump_path_of_a_file_elsewhere_starts_at_the_working_directory(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf/config.json").write_text('{"dump_path": "dump"}')
    assert load_config("conf/config.json").dump_path == Path("dump")


def test_api_yaml_is_looked_for_beside_the_file_and_then_in_the_working_directory(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf/config.json").write_text('{"api_yaml": "apis.yaml"}')
    (folder / "apis.yaml").write_text("torch: [add]")
    assert load_config("conf/config.json").api_yaml == Path("apis.yaml")
    (folder / "conf/apis.yaml").write_text("torch: [add]")
    assert load_config("conf/config.json").api_yaml == Path("conf/apis.yaml")


def test_api_yaml_as_an_argument_starts_at_the_working_directory(folder: Path) -> None:
    (folder / "apis.yaml").write_text("torch: [add]")
    assert load_config(api_yaml="apis.yaml").api_yaml == Path("apis.yaml")
    assert load_config(api_yaml=folder / "apis.yaml").api_yaml == folder / "apis.yaml"


def test_a_byte_order_mark_is_no_error(folder: Path) -> None:
    (folder / "config.json").write_text('{"level": "L0"}', encoding="utf-8-sig")
    assert load_config("config.json").level == "L0"


def test_tensor_list_beside_task_tensor_is_a_warning(
    write_config: WriteConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(write_config(task="tensor", tensor={"tensor_list": ["relu"]}), tensor_list=["conv"])
    assert config.tensor_list == ()
    assert caplog.record_tuples == [
        ("tensorprobe", logging.WARNING, f"tensor_list has no effect with task tensor ({place}) and is ignored")
        for place in ('in ./config.json, key "tensor.tensor_list"', 'argument "tensor_list"')
    ]


def test_the_result_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config().level = "L0"  # type: ignore[misc]


def test_every_field_is_an_argument() -> None:
    for field in dataclasses.fields(CaptureConfig):
        assert load_config(**{field.name: None}) == CaptureConfig()


def imported_by(statement: str) -> set[str]:
    """The packages that a fresh process has after the statement; a stand-in for `tensorprobe` keeps its face out."""
    package = str(Path(tensorprobe.errors.__file__).parent)
    stand_in = f"package = types.ModuleType('tensorprobe'); package.__path__ = [{package!r}]"
    setup = f"import sys, types; {stand_in}; sys.modules['tensorprobe'] = package"
    script = f"{setup}; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_configuration_needs_the_standard_library_only() -> None:
    outside = imported_by("import tensorprobe.config") & {"yaml", "numpy", "torch", "mindspore"}
    assert outside == set()


def test_the_check_above_can_fail() -> None:
    assert "yaml" in imported_by("import tensorprobe.config, yaml")


@pytest.mark.parametrize("action", ["stop", "tensors"])
def test_on_nonfinite_is_one_of_two_words(write_config: WriteConfig, action: str) -> None:
    assert load_config(write_config(on_nonfinite=action)).on_nonfinite == action
    with pytest.raises(ConfigError, match="on_nonfinite 'halt' is not one of stop, tensors"):
        load_config(write_config(on_nonfinite="halt"))


def test_on_nonfinite_has_no_effect_where_no_statistics_are_computed(
    write_config: WriteConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_config(write_config(task="structure", on_nonfinite="stop")).on_nonfinite is None
    assert "on_nonfinite has no effect with task structure" in caplog.text
