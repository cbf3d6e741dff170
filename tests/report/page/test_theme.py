"""What is right and what is wrong have colours that people who see few of them can tell apart, in both themes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe.report.page

THEME = Path(str(tensorprobe.report.page.__file__)).parent / "asset" / "theme.css"
# How each of the three kinds of colour blindness changes linear RGB (Machado, Oliveira and Fernandes, 2009).
SIGHTS = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
EASY = 15.0
"""A distance in CIELAB that is seen at a glance; 2.3 is the least that is seen at all."""


def read_theme(name: str) -> dict[str, str]:
    light, _, dark = THEME.read_text("utf-8").partition(':root[data-theme="dark"]')
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if name == "light" else dark))


def see(colour: str, sight: str) -> Any:
    """A colour as CIELAB, as somebody sees it."""
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = TO_XYZ @ np.clip(np.array(SIGHTS[sight]) @ linear, 0, 1) / WHITE
    root = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_what_agrees_and_what_differs_are_told_apart(theme: str, sight: str) -> None:
    colours = read_theme(theme)
    for good, bad in itertools.product(("blue", "green"), ("orange", "red")):
        distance = np.linalg.norm(see(colours[good], sight) - see(colours[bad], sight))
        assert distance > EASY, (good, bad, distance)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_the_shades_of_an_icicle_are_told_apart_from_their_neighbours(theme: str, sight: str) -> None:
    colours = read_theme(theme)
    seen = [see(colours[f"shade_{number}"], sight) for number in range(6)]
    for lighter, darker in itertools.pairwise(seen):
        assert np.linalg.norm(lighter - darker) > 5
