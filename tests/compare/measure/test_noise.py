"""Errors by norm and at the worst element are kept apart."""

from __future__ import annotations

import math

from tensorprobe.compare.measure.noise import SILENCE, Noise, loudest


def test_both_measures_have_to_be_within_their_own_tolerance() -> None:
    tolerance = Noise(1e-3, 1e-5)
    assert Noise(1e-3, 1e-5).is_within(tolerance)
    assert not Noise(1.1e-3, 0.0).is_within(tolerance)
    assert not Noise(0.0, 1.1e-5).is_within(tolerance)


def test_the_worst_measure_is_the_one_that_is_closest_to_its_tolerance_and_not_the_largest() -> None:
    assert Noise(1e-3, 1e-4).worst_against(Noise(1e-2, 1e-5)) == (1e-4, 1e-5)
    assert Noise(1e-3, 1e-4).worst_against(Noise(1e-4, 1e-2)) == (1e-3, 1e-4)
    assert Noise(0.0, 1e-9).worst_against(Noise(0.0, 1.0)) == (1e-9, 1.0), "no error needs no tolerance"
    assert Noise(1e-9, 1e-3).worst_against(Noise(0.0, 1e-4)) == (1e-9, 0.0), "an error where nothing is allowed"
    assert Noise(math.nan, 1e-3).worst_against(Noise(1.0, 1.0)) == (1e-3, 1.0)


def test_a_call_adds_its_rounding_and_passes_on_16_times_what_went_in() -> None:
    assert Noise(1.0, 2.0).passed_on(0.5) == Noise(16.5, 32.5)
    assert Noise(1.0, 2.0).passed_on(0.5, scale=2.0, gain=3.0) == Noise(7.0, 13.0)
    assert Noise(1.0, 2.0).relative_to(4.0) == Noise(0.25, 0.5)


def test_of_many_the_loudest_in_each_measure_counts() -> None:
    assert loudest([Noise(1.0, 2.0), Noise(3.0, 0.5)]) == Noise(3.0, 2.0)
    assert loudest([]) == SILENCE
