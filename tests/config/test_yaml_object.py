"""A configuration in YAML: the same keys, the same checks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensorprobe.config import load_config
from tensorprobe.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "config.yaml").write_text(text)
    return tmp_path / "config.yaml"


def test_a_yaml_file_sets_what_a_json_file_sets(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "level: mix  # both\nstep: [0, 3-4]\nstatistics:\n  list: [relu]\n"))
    assert (config.level, config.step, config.list) == ("mix", {0, 3, 4}, ("relu",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("level: L3", r"level 'L3' is not one of L0, L1, mix, debug \(in .*config.yaml, key \"level\"\)"),
        ("levl: L1", 'unknown key "levl" in .*config.yaml; did you mean "level"'),
        ("[1, 2]", r"config.yaml holds \[1, 2\], not keys with values; write: level: L1"),
        ("level: [", r"config.yaml is not valid YAML: [^\n]* \(line 1, column 9\); correct it there$"),
        ("level: L1\nlevel: L0", r"YAML: 'level' stands twice \(line 2, column 1\); correct it there$"),
        ("task: tensor\n\tlevel: L1", r"cannot start any token: indent with spaces \(line 2, column 1\); correct it"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize("text", ["", "# level: L1\n"])
def test_a_file_whose_keys_are_all_deleted_keeps_every_default(tmp_path: Path, text: str) -> None:
    assert load_config(write(tmp_path, text)) == load_config()


def test_without_pyyaml_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"config\.yaml is YAML, which needs pyyaml: pip install pyyaml, or write"):
        load_config(write(tmp_path, "level: L1"))
