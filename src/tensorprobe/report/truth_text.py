"""What `truth` prints: the verdict first, then what it rests on, then the calls in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from tensorprobe.replay.result import Truth
from tensorprobe.replay.truth_summary import summarize_truth
from tensorprobe.report.console import Fact, print_facts, print_lines
from tensorprobe.report.escape import clean
from tensorprobe.report.truth_row import COLUMNS, TruthRow

_HEADINGS = {
    "record": "call",
    "slot": "value",
    "dtype": "dtype",
    "own_units": "own error (units)",
    "accumulated_relative": "error so far",
    "effect_on_loss": "changes loss by",
    "overflow_count": "overflow",
    "underflow_count": "underflow",
}


def print_truth(console: Console, truth: Truth, rows: Sequence[TruthRow], where_more: str = "") -> None:
    """One step of one process."""
    summary = summarize_truth(truth)
    print_facts(console, [Fact(Text(""), Text(clean(summary.headline), style="bold"))])
    for finding in summary.findings:
        first, *rest = finding.split("\n")
        print_facts(console, [Fact(Text("  wrong: ", style="bold red"), Text(clean(first)))])
        print_facts(console, [Fact(Text("         "), Text(clean(line.strip()))) for line in rest])
    _print_all(console, "", summary.observables)
    _print_all(console, "most of the loss's error comes from", summary.contributions)
    _print_all(console, "decisions that rounding changed", summary.decisions)
    _print_all(console, "coverage", summary.coverage)
    if rows:
        print_lines(console, [Text(""), *_table(rows)])
    if where_more:
        print_facts(console, [Fact(Text("  "), Text(where_more))])


def _print_all(console: Console, heading: str, sentences: Iterable[str]) -> None:
    found = list(sentences)
    if found and heading:
        print_facts(console, [Fact(Text("  "), Text(f"{heading}:"))])
    indent = "    " if heading else "  "
    print_facts(console, [Fact(Text(indent), Text(clean(sentence))) for sentence in found])


def _table(rows: Sequence[TruthRow]) -> list[Text]:
    cells = [[_HEADINGS[name] for name in COLUMNS], *[[_cell(getattr(row, name)) for name in COLUMNS] for row in rows]]
    widths = [max(len(line[number]) for line in cells) for number in range(len(COLUMNS))]
    lines: list[Text] = []
    for line in cells:
        texts = [
            text.ljust(width) if number < 3 else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append(Text("  ".join(texts).rstrip(), style="" if lines else "bold"))
    return lines


def _cell(value: object) -> str:
    if value is None or (value == 0 and not isinstance(value, float)):
        return ""
    return f"{value:.2e}" if isinstance(value, float) else clean(str(value))
