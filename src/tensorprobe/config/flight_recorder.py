"""`flight_recorder`: 5, or {"steps": 5, "on": ["nonfinite", "loss_spike", "signal"], …}."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from tensorprobe.config.setting import Setting
from tensorprobe.config.suggestion import suggest

TRIGGERS = ("nonfinite", "loss_spike", "signal")
MIN_LOSSES = 5
"""Fewer than these have no median that means something."""


@dataclass(frozen=True)
class FlightRecorderOptions:
    """The last steps are kept on disk; when something happens, they stay."""

    steps: int = 5
    """How many steps are kept, the one in which it happens included."""
    on: frozenset[str] = frozenset(TRIGGERS)
    max_kept: int = 3
    """How often the steps before a trigger stay, for each kind of trigger."""
    spike_factor: float = 3.0
    """A loss is a spike if it is so many times the median of those before."""
    spike_window: int = 20
    """How many losses the median is of."""
    callback: Callable[[Any], object] | None = None


def read_flight_recorder(setting: Setting) -> FlightRecorderOptions:
    """The options, each checked."""
    value = setting.value
    if _is_count(value):
        value = {"steps": value}
    if not isinstance(value, dict):
        raise setting.error("is not a number of steps from 1 up, nor an object", 'write 5, or {"steps": 5}')
    accepted = tuple(field.name for field in fields(FlightRecorderOptions))
    for key in value:
        if key not in accepted:
            advice = suggest(key, accepted) or f"accepted keys: {', '.join(accepted)}"
            raise setting.error(f"has the unknown key {key!r}", advice)
    given = {key: item for key, item in value.items() if item is not None}
    readers = {
        "on": _read_triggers,
        "callback": _read_callback,
        "spike_factor": _read_factor,
        "spike_window": _read_window,
    }
    return FlightRecorderOptions(
        **{
            key: readers.get(key, _read_count)(Setting(f"{setting.key}.{key}", item, setting.source))
            for key, item in given.items()
        }
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _read_count(setting: Setting) -> Any:
    if not _is_count(setting.value):
        raise setting.error("is not a number from 1 up")
    return setting.value


def _read_window(setting: Setting) -> Any:
    value: Any = setting.value
    if not _is_count(value) or value < MIN_LOSSES:
        raise setting.error(f"is not a number from {MIN_LOSSES} up: the median of fewer losses means little")
    return value


def _read_factor(setting: Setting) -> Any:
    value = setting.value
    if not isinstance(value, Real) or isinstance(value, bool) or not 1 < float(value) < float("inf"):
        raise setting.error("is not a number above 1")
    return float(value)


def _read_triggers(setting: Setting) -> Any:
    value = (setting.value,) if isinstance(setting.value, str) else setting.value
    if not isinstance(value, (list, tuple, set, frozenset)) or not value:
        raise setting.error(f"is not a list from {', '.join(TRIGGERS)}")
    for item in value:
        if item not in TRIGGERS:
            raise setting.of_item(item).error(f"is not one of {', '.join(TRIGGERS)}", suggest(item, TRIGGERS))
    return frozenset(value)


def _read_callback(setting: Setting) -> Any:
    value = setting.value
    if callable(value):
        return value
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module or not name:
        raise setting.error("is not a function", 'give a function, or its name like "my_package.my_module:function"')
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise setting.error(f"cannot be imported: {error}") from None
    if not callable(function):
        raise setting.error("is not a function")
    return function
