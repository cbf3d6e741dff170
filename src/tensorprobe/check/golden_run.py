"""A run held against its golden record, or written as one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tensorprobe.check.engine import SIDES, describe_verdict
from tensorprobe.check.golden import Golden, build_golden, read_golden, unfold_golden, write_golden
from tensorprobe.check.option import CheckOptions, make_check_options
from tensorprobe.check.side import make_side, record_side
from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.result import Comparison
from tensorprobe.errors import UsageError

FOLDER = "__tensorprobe__"
_REFERENCE, _CANDIDATE = SIDES
_FIXED = {"task": "a golden record has statistics", "keep": "the record beside the test is what is kept"}
_ODD = re.compile(r"[^A-Za-z0-9_.,=\[\]-]")
_MAX_STEM = 100


def golden_path(test_file: Path, test: str) -> Path:
    """`__tensorprobe__/test_model/TestNorm.test_forward[relu].json`, beside the test.

    Where a name is long, or has characters that some file system refuses, a digest keeps it apart from others.
    """
    plain = test.replace("::", ".")
    stem = _ODD.sub("_", plain)[:_MAX_STEM]
    if stem != plain:
        stem = f"{stem}-{blake2b(test.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
    return test_file.parent / FOLDER / test_file.stem / f"{stem}.json"


class GoldenRun:
    """What one test runs, once or several times, each with a record of its own."""

    def __init__(self, test_file: Path, test: str) -> None:
        self._test_file = test_file
        self._test = test
        self._names: set[str] = set()

    def name_run(self, name: str | None) -> str:
        """`test_forward`, of a second run in the same test `test_forward::2`, or with the name that it was given."""
        if name is None:
            name = "" if "" not in self._names else str(len(self._names) + 1)
        if name in self._names:
            raise UsageError(f"{self._test} has two golden records of the name {name!r}. Give each its own.")
        self._names.add(name)
        return f"{self._test}::{name}" if name else self._test

    def path_of(self, run: str) -> Path:
        return golden_path(self._test_file, run)

    def update(self, run: str, function: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
        """Write the record; False if it was the same already."""
        chosen = _make_options(options)
        with _temporary_folder() as folder:
            _record(function, inputs, chosen, folder / _CANDIDATE)
            return write_golden(self.path_of(run), build_golden(folder / _CANDIDATE, run))

    def compare(self, run: str, function: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Comparison:
        """Record it and hold it against its golden record, by the growth of errors: there are no tensors to replay."""
        chosen = _make_options(options)
        golden = read_golden(self.path_of(run), run)
        with _temporary_folder() as folder:
            unfold_golden(golden, self.path_of(run), folder / _REFERENCE)
            _record(function, inputs, chosen, folder / _CANDIDATE)
            found = compare_runs(folder / _REFERENCE, folder / _CANDIDATE, replace(chosen.compare, by="growth"))
            note = _note_versions(golden, build_golden(folder / _CANDIDATE, run))
        verdict = replace(found.verdict, evidence=(*found.verdict.evidence, *note))
        return replace(found, reference=str(self.path_of(run)), candidate=run, verdict=verdict)


def describe_failure(comparison: Comparison) -> str:
    """The verdict, and what to do if the change is meant."""
    return (
        f"{describe_verdict(comparison)}\n\n"
        f"reference: {comparison.reference}\n"
        "If the change is meant, write the record anew and review its diff: pytest --tensorprobe-update"
    )


def _make_options(given: Mapping[str, Any]) -> CheckOptions:
    for name, reason in _FIXED.items():
        if name in given:
            raise UsageError(f"{name!r} is not an option of golden_run: {reason}.")
    return replace(make_check_options(given), task="statistics")


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tensorprobe-golden-") as name:
        yield Path(name)


def _record(function: Any, inputs: tuple[Any, ...], options: CheckOptions, folder: Path) -> None:
    side = make_side(_CANDIDATE, function, inputs, options)
    level = options.level or ("mix" if side.models else "L1")
    record_side(side.copied(options.dtype, options.device), folder, level, options, summary_mode="hash")


def _note_versions(golden: Golden, now: Golden) -> tuple[str, ...]:
    before = golden.get("versions")
    if not isinstance(before, dict) or before == now["versions"]:
        return ()
    words = (", ".join(f"{name} {version}" for name, version in one.items()) for one in (before, now["versions"]))
    return ("the golden record was written with {}, this run used {}".format(*words),)
