from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.config import load_config
from tensorprobe.config.flight_recorder import FlightRecorderOptions
from tensorprobe.errors import ConfigError
from tests.config.conftest import WriteConfig


def test_a_number_is_how_many_steps_are_kept() -> None:
    assert load_config(flight_recorder=7).flight_recorder == FlightRecorderOptions(steps=7)
    assert load_config().flight_recorder is None


def test_the_object_of_a_file_is_read(write_config: WriteConfig) -> None:
    path = write_config(flight_recorder={"steps": 4, "on": ["signal"], "callback": "json:dumps", "spike_factor": 2})
    options = load_config(path).flight_recorder
    assert options is not None and options.callback is not None and options.callback.__name__ == "dumps"
    assert (options.steps, options.on, options.spike_factor) == (4, {"signal"}, 2.0)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("five", "flight_recorder 'five' is not a number of steps from 1 up, nor an object (argument"),
        (0, "flight_recorder 0 is not a number of steps from 1 up, nor an object (argument"),
        ({"step": 3}, 'has the unknown key \'step\' (argument "flight_recorder"); did you mean "steps"?'),
        ({"steps": 0}, "flight_recorder.steps 0 is not a number from 1 up"),
        ({"on": ["nan"]}, "flight_recorder.on 'nan' is not one of nonfinite, loss_spike, signal"),
        ({"on": []}, "flight_recorder.on [] is not a list from nonfinite, loss_spike, signal"),
        ({"spike_factor": 1}, "flight_recorder.spike_factor 1 is not a number above 1"),
        ({"spike_window": 4}, "flight_recorder.spike_window 4 is not a number from 5 up: the median of fewer losses"),
        ({"callback": "dumps"}, "flight_recorder.callback 'dumps' is not a function"),
        ({"callback": "json:no"}, "flight_recorder.callback 'json:no' cannot be imported: module 'json' has no"),
    ],
)
def test_what_is_not_understood_is_refused(written: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flight_recorder=written)
    assert text in str(caught.value)
