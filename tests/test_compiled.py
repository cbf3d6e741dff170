"""Compiled parts: used where they were built from these sources."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tensorprobe.compiled import load_compiled


@pytest.mark.parametrize(("built", "is_used"), [(2, True), (1, False), (None, False)])
def test_what_was_built_from_older_sources_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, built: int | None, is_used: bool
) -> None:
    module = ModuleType("tensorprobe._old")
    if built is not None:
        vars(module)["INTERFACE"] = built
    monkeypatch.delenv("TENSORPROBE_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert (load_compiled(module.__name__, interface=2) is module) == is_used


def test_what_was_not_built_is_missing() -> None:
    assert load_compiled("tensorprobe._never_built") is None
