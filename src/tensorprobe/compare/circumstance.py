"""What may make two runs differ although the program is the same: the differences of their run.json.

Two frameworks have other settings: of those, what both have is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensorprobe.word.vocabulary import is_across_frameworks

_COMPARED = ("framework", "versions", "devices", "settings", "environment", "tensorprobe", "task", "level", "compiled")
_SETTINGS = "settings."
_MAX_DEPTH = 4

_ON_MINDSPORE = ("mindspore", "mindtorch")

NOT_REPEATED = (
    "MindSpore on a CPU is not always bit-for-bit reproducible: small differences may be harmless. To make it so, call "
    "mindspore.device_context.cpu.op_tuning.threads_num(1) before the first operation of both programs"
)

Difference = tuple[str, Any, Any]


def compare_circumstances(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Key, reference, candidate; only what changes numbers, not the host, the process or the time."""
    if not reference or not candidate:  # msprobe writes none
        return ()
    found: list[Difference] = []
    for key in _COMPARED:
        found.extend(_differences(key, reference.get(key), candidate.get(key), 0))
    if is_across_frameworks(str(reference.get("framework", "")), str(candidate.get("framework", ""))):
        found = [one for one in found if not _is_of_one_framework(*one)]
    return tuple(found)


def find_unrepeated(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[str, ...]:
    """What to know of two runs that differ in their bits: that one program may do so by itself, and what to set."""
    runs = (reference, candidate)
    is_possible = all(map(_is_mindspore_on_cpu, runs)) and not all(map(_has_set_threads, runs))
    return (NOT_REPEATED,) if is_possible else ()


def _is_mindspore_on_cpu(run: Mapping[str, Any]) -> bool:
    return run.get("framework") in _ON_MINDSPORE and run.get("devices") == ["CPU"]


def _has_set_threads(run: Mapping[str, Any]) -> bool:
    """How many they are, MindSpore (2.10) does not tell."""
    settings = run.get("settings")
    return isinstance(settings, dict) and settings.get("threads_num_is_set") is True


def _is_of_one_framework(key: str, reference: Any, candidate: Any) -> bool:
    if key.startswith(_SETTINGS):
        return reference is None or candidate is None
    return key == "devices" and str(reference).lower() == str(candidate).lower()


def _differences(key: str, reference: Any, candidate: Any, depth: int) -> Iterator[Difference]:
    if isinstance(reference, dict) and isinstance(candidate, dict) and depth < _MAX_DEPTH:
        for name in [*reference, *(name for name in candidate if name not in reference)]:
            yield from _differences(f"{key}.{name}", reference.get(name), candidate.get(name), depth + 1)
    elif reference != candidate:
        yield key, reference, candidate
