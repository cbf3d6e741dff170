"""Refuses the import of a name whose owner is installed too, even where Python would find the owner's package first.

A .pth file runs `install` whenever Python starts: nothing is imported for it but what stands here.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorprobe_compat.original import ORIGINALS, refuse_beside_original


class Guard:
    """A finder that finds nothing; it is asked before the others."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in ORIGINALS:
            refuse_beside_original(name)


def install() -> None:
    """Ask the guard first, once."""
    if Guard not in sys.meta_path:
        sys.meta_path.insert(0, Guard)  # type: ignore[arg-type]
