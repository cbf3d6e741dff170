"""The files of `truth`: each appears whole, replaces an older one, and only its owner may read it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tensorprobe._version import __version__
from tensorprobe.errors import UsageError
from tensorprobe.replay.result import Truth
from tensorprobe.replay.truth_summary import summarize_truth
from tensorprobe.report.cell import defuse, make_cell
from tensorprobe.report.compare_file import prepared_folder
from tensorprobe.report.json import encode
from tensorprobe.report.page_file import write_page_file
from tensorprobe.report.truth_row import COLUMNS, build_truth_rows
from tensorprobe.store import disk
from tensorprobe.store.reader import Dump

CSV_FILE, JSON_FILE, HTML_FILE = FILES = "truth.csv", "truth.json", "report.html"


def prepared_truth_folder(folder: Path, dump: Path) -> AbstractContextManager[None]:
    """Refused at once where nothing can be written."""
    return prepared_folder(folder, (dump,), FILES)


def write_truth_files(folder: Path, dump: Dump, truths: Sequence[Truth]) -> tuple[Path, ...]:
    """truth.csv and truth.json, and report.html: the run, and how many digits each of its calls has lost."""
    from tensorprobe.report.page.run import build_run_page

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step_and_rank", *COLUMNS))
    for truth in truths:
        for row in build_truth_rows(truth):
            cells = [make_cell(value) for value in (truth.name, *(getattr(row, name) for name in COLUMNS))]
            writer.writerow([defuse(cell) if isinstance(cell, str) else cell for cell in cells])
    contents = {CSV_FILE: text.getvalue(), JSON_FILE: "".join(iter_truth_json(truths))}
    for name, content in contents.items():
        try:
            with disk.open_whole(folder / name) as file:
                file.write(content.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise UsageError(f"{folder / name} could not be written ({error.strerror or error}).") from error
    write_page_file(folder / HTML_FILE, build_run_page(dump, truths))
    return tuple(folder / name for name in FILES)


def write_truth_json(write: Callable[[str], Any], truths: Sequence[Truth]) -> None:
    for piece in iter_truth_json(truths):
        write(piece)


def iter_truth_json(truths: Sequence[Truth]) -> Iterator[str]:
    """Strict JSON, piece by piece: for each step and rank the sentences, then every value on a line of its own."""
    yield f'{{"tensorprobe": {encode(__version__)},\n"is_right": {encode(all(truths))},\n"runs": ['
    for number, truth in enumerate(truths):
        yield ",\n" if number else "\n"
        head = ",\n".join(f"{encode(key)}: {encode(value)}" for key, value in _describe(truth).items())
        yield "{" + head + ',\n"rows": ['
        for place, row in enumerate(build_truth_rows(truth)):
            yield (",\n" if place else "\n") + encode({name: getattr(row, name) for name in COLUMNS})
        yield "\n]}"
    yield "\n]}\n"


def _describe(truth: Truth) -> dict[str, Any]:
    summary = summarize_truth(truth)
    return {
        "name": truth.name,
        "headline": summary.headline,
        "findings": [
            {"kind": finding.kind, "record": finding.record, "slot": finding.slot, "text": text}
            for finding, text in zip(truth.findings, summary.findings, strict=True)
        ],
        "losses": [{"record": record, "recorded": recorded, "true": true} for record, recorded, true in truth.losses],
        "observables": summary.observables,
        "contributions": summary.contributions,
        "decisions": summary.decisions,
        "coverage": {
            "calls": truth.coverage.call_count,
            "replayed": truth.coverage.replayed,
            "random": truth.coverage.random,
            "gaps": truth.coverage.gaps,
            "not_judged": truth.not_judged,
        },
    }
