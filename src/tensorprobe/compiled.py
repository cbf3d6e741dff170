"""Compiled parts (`_*.c`), where they were built. Each has a twin in Python that does the same, slower; with
TENSORPROBE_NATIVE=0 the twins are used."""

from __future__ import annotations

import importlib
import os
from typing import Any

VARIABLE = "TENSORPROBE_NATIVE"


def load_compiled(name: str, interface: int | None = None) -> Any:
    """The compiled module of this name; None where there is none, or where it was built from sources whose functions
    are called otherwise (`INTERFACE` in them): an editable installation is not built anew when its sources change."""
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        module = importlib.import_module(name)
    except ImportError:  # there was no compiler when the package was installed
        return None
    return module if interface is None or getattr(module, "INTERFACE", None) == interface else None
