"""What holds in every test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tensorprobe.capture.recorder import Recorder
from tests.length import IS_LONG

# Neither a deadline nor the check for slowness tells anything but how busy the machine is. The short form tries the
# same examples every time, so that what passes once passes again; the long one looks for new ones.
settings.register_profile(
    "short", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("long", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("long" if IS_LONG else "short")


@pytest.hookimpl(trylast=True)  # of what `-k` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked `long` repeats, at length, what others show. Of what is marked `some(3)` every third case runs."""
    if IS_LONG:
        return
    is_named = any("[" in argument for argument in config.args)
    counts: Counter[str] = Counter()
    kept, put_off = [], []
    for item in items:
        some = item.get_closest_marker("some")
        test = item.nodeid.partition("[")[0]
        is_left_out = item.get_closest_marker("long") or (some and not is_named and counts[test] % some.args[0])
        counts[test] += 1
        (put_off if is_left_out else kept).append(item)
    if put_off:
        config.hook.pytest_deselected(items=put_off)
        items[:] = kept


@pytest.fixture(autouse=True)
def stale_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A value that verify mode (lane `verify`) found changed fails the test, unless the test itself clears the list."""
    noted: list[str] = []
    original = Recorder.note_stale

    def note_stale(recorder: Recorder, slot: str, difference: str) -> None:
        noted.append(f"{slot}: {difference}")
        original(recorder, slot, difference)

    monkeypatch.setattr(Recorder, "note_stale", note_stale)
    yield noted
    assert not noted, "values were taken as known and had changed"
