"""A comparison as the one document that its page is made of: plain data, with all texts as the dumps have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorprobe._version import __version__
from tensorprobe.compare.result import Comparison
from tensorprobe.compare.row import Block, iter_blocks
from tensorprobe.report.compare_json import describe_coverage, describe_matrix, describe_unpaired
from tensorprobe.report.compare_statement import iter_statements
from tensorprobe.report.compare_summary import Summary, summarize
from tensorprobe.report.json import make_strict
from tensorprobe.report.page.call_stack import build_stacks
from tensorprobe.report.page.call_table import CallTable
from tensorprobe.report.page.column import Strings, build_row_columns, join_blocks
from tensorprobe.report.page.picked_detail import describe_details
from tensorprobe.report.page.recorded import Recorded
from tensorprobe.report.page.region import build_region
from tensorprobe.report.page.verdict import describe_others, describe_verdict

VERSION = 1
"""Of the document."""


def build_comparison_page(comparison: Comparison, summary: Summary | None = None) -> dict[str, Any]:
    """The whole document. `summary` is made here if it was not made before."""
    return add_rows(build_page_head(comparison, summary or summarize(comparison)), iter_blocks(comparison))


def build_page_head(comparison: Comparison, summary: Summary) -> dict[str, Any]:
    """All but the rows: what is saved beside them, so that a page can be made without the dumps."""
    strings, table, recorded = Strings(), CallTable(comparison), Recorded(comparison)
    verdict, others = describe_verdict(summary, table, recorded), describe_others(summary, table)
    head = {
        "version": VERSION,
        "kind": "comparison",
        "tensorprobe": __version__,
        "title": f"{comparison.verdict.kind}: {comparison.reference} against {comparison.candidate}",
        "reference": comparison.reference,
        "candidate": comparison.candidate,
        "verdict": verdict,
        "others": others,
        "statements": [
            {"label": one.label, "text": one.text, "mark": one.mark}
            for one in iter_statements(summary, "they are in the table of all pairs", is_beside_tables=True)
        ],
        "places": table.places,
        "matrix": describe_matrix(summary.matrix) if summary.has_several_ranks else None,
        "graph": build_region(summary.verdict, table),
        "details": describe_details(table, [one["call"] for one in (verdict, *others)], recorded),
        "coverage": describe_coverage(summary.coverage),
        "unpaired": [describe_unpaired(one) for one in (*summary.unpaired, *summary.idle, *summary.framework_unpaired)],
        "problems": list(summary.problems),
        "circumstances": _describe_circumstances(summary),
        "counts": _describe_counts(summary),
    }
    stack_columns, stacks = build_stacks(table, recorded, strings)
    columns = {**table.build_columns(strings), **stack_columns}
    rows = {"row_calls": table.row_calls, "row_places": table.row_places}
    return {**make_strict(head), "calls": columns, "stacks": stacks, **rows, "strings": strings.listed}


def add_rows(head: dict[str, Any], blocks: Iterable[Block]) -> dict[str, Any]:
    """The document: its head with every pair of values, and every call without a partner."""
    strings = Strings(head["strings"])
    calls, places = head["row_calls"], head["row_places"]
    kept = {key: value for key, value in head.items() if key not in ("row_calls", "row_places")}
    columns = build_row_columns(join_blocks(blocks), calls, places, strings)
    return {**kept, "rows": columns, "strings": strings.listed}


def _describe_circumstances(summary: Summary) -> list[dict[str, Any]]:
    return [
        {"key": one.key, "reference": one.reference, "candidate": one.candidate, "places": list(one.places)}
        for one in summary.circumstances
    ]


def _describe_counts(summary: Summary) -> dict[str, Any]:
    names = ("calls", "framework_calls", "tensors", "arguments", "bases", "obstacles", "fallbacks")
    return {name: dict(getattr(summary, name)) for name in names}
