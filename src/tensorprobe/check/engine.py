"""Two functions or models, recorded one after the other with the same inputs, and compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorprobe.check.option import CheckOptions
from tensorprobe.check.side import make_side, record_side
from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.result import Comparison
from tensorprobe.foreign_text import clean

SIDES = ("reference", "candidate")


def check_functions(reference: Any, candidate: Any, inputs: tuple[Any, ...], options: CheckOptions) -> Comparison:
    """What `tensorprobe.check` does, with options that are checked already."""
    sides = [make_side(name, one, inputs, options) for name, one in zip(SIDES, (reference, candidate), strict=True)]
    level = options.level or ("mix" if all(side.models for side in sides) else "L1")
    with _folder(options) as folder:
        record_side(sides[0].copied(), folder / SIDES[0], level, options)
        record_side(sides[1].converted(options), folder / SIDES[1], level, options)
        found = compare_runs(folder / SIDES[0], folder / SIDES[1], options.compare)
    return found if options.keep is not None else replace(found, reference=SIDES[0], candidate=SIDES[1])


@contextmanager
def _folder(options: CheckOptions) -> Iterator[Path]:
    if options.keep is not None:
        yield Path(options.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="tensorprobe-check-") as name:
            yield Path(name)


def describe_verdict(comparison: Comparison) -> str:
    """The sentence, and beneath it what supports it."""
    verdict = comparison.verdict
    return "\n".join([clean(verdict.headline), *(f"  {clean(line)}" for line in verdict.evidence)])
