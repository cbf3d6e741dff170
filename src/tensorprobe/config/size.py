"""Sizes on disk: 5000000000, "5GB", "500 MB", "1.5TB", "2GiB"."""

from __future__ import annotations

import re

from tensorprobe.config.setting import Setting

_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kKMGT]?i?B?)")


def read_size(setting: Setting) -> int:
    """So many bytes."""
    value = setting.value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise setting.error("is not a size", 'write a number of bytes, or a text like "500MB", "50GB" or "2TB"')
    return int(float(match[1]) * _UNITS[match[2]])


def show_size(size_bytes: float) -> str:
    """`1.2 GB`

    >>> show_size(1_234_567_890), show_size(999)
    ('1.2 GB', '999 B')
    """
    for unit in ("TB", "GB", "MB", "kB"):
        if size_bytes >= _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:.3g} {unit}" if size_bytes < 1000 * _UNITS[unit] else _whole(size_bytes)
    return f"{int(size_bytes)} B"


def _whole(size_bytes: float) -> str:
    return f"{size_bytes / _UNITS['TB']:,.0f} TB"
