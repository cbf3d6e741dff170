"""Whose the names are, and what is said where their owners are installed."""

from __future__ import annotations

ORIGINALS = {"msprobe": "mindstudio-probe", "troubleshooter": "troubleshooter"}
"""Import name -> the distribution that it belongs to."""


def refuse_beside_original(name: str) -> None:
    """ImportError if the distribution that a name belongs to is installed: two packages cannot have one name."""
    from importlib import metadata  # when it is needed: this file is read whenever Python starts

    try:
        version = metadata.version(ORIGINALS[name])
    except metadata.PackageNotFoundError:
        return
    original = f"{ORIGINALS[name]} {version}"
    raise ImportError(
        f"import {name}: both {original} and tensorprobe-compat are installed, and either could be meant. "
        f"For tensorprobe: pip uninstall {ORIGINALS[name]}. For {original}: pip uninstall tensorprobe-compat. "
        "No file of either is damaged by the other.",
        name=name,
    )
