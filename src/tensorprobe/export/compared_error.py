"""The errors of a saved comparison, by the calls of one of its two runs. Its file may come from anyone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.url import show_location
from tensorprobe.run.call import Call

_SIDES = ("reference", "candidate")


class ComparedErrors:
    """The largest error of each value, by the rank and the name that it has in this run."""

    def __init__(self, found: dict[tuple[str, str], float]) -> None:
        self._found = found

    def find(self, place: str, calls: Iterable[Call]) -> dict[str, float | None]:
        """The largest error of the results of each call."""
        errors: dict[str, float | None] = {}
        for call in calls:
            names = [f"{call.name}.{slot.slot}" for slot in call.tensors if not slot.is_input]
            known = [self._found[place, name] for name in names if (place, name) in self._found]
            errors[call.name] = max(known, default=None)
        return errors


def read_errors(file: Path, dump_path: Path) -> ComparedErrors:
    """Of a compare.json in which this dump is one of the two runs."""
    content = _read(file)
    side = _find_side(content, file, dump_path)
    places = {
        (rank.get("step"), str(rank.get("reference_name")).rpartition("/")[2]): rank.get(f"{side}_name")
        for rank in content.get("ranks", ())
        if isinstance(rank, dict)
    }
    found: dict[tuple[str, str], float] = {}
    for row in content["rows"]:
        name, error = row.get(f"{side}_name"), _read_number(row.get("error"))
        place = places.get((row.get("step"), row.get("rank")))
        if isinstance(name, str) and isinstance(place, str) and error is not None:
            found[place, name] = max(error, found.get((place, name), 0.0))
    return ComparedErrors(found)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DumpError(f"--compare {file} cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"--compare {file} is no JSON ({error}).") from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DumpError(
            f"--compare {file} is not a compare.json. Write one with: tensorprobe compare REFERENCE CANDIDATE -o DIR "
            "--files json"
        )
    return dict(content)


def _find_side(content: dict[str, Any], file: Path, dump_path: Path) -> str:
    """By the path, and where the dumps have been moved, by the name of the folder, if only one of them has it."""
    named = {side: Path(str(content.get(side))) for side in _SIDES}
    same = [side for side, path in named.items() if path.resolve() == dump_path.resolve()]
    alike = [side for side, path in named.items() if path.name == dump_path.resolve().name]
    if same or len(alike) == 1:
        return (same or alike)[0]
    raise UsageError(
        f"--compare {file} compares {named['reference']} with {named['candidate']}, and {show_location(dump_path)} is "
        "neither. Export one of the two."
    )


def _read_number(value: Any) -> float | None:
    if isinstance(value, str) and value in ("NaN", "Infinity"):
        return math.inf
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
