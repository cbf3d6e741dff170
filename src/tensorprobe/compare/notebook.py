"""How a result shows itself in a notebook: compact, without scripts, which a notebook strips. All texts are escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe.compare.result import NO_ANSWER, STATUSES
from tensorprobe.foreign_text import clean, shorten

if TYPE_CHECKING:
    from tensorprobe.compare.result import Comparison, RankResult

_TEMPLATE = Path(__file__).with_name("notebook.html")
_MAX_LINES = 8
_MAX_RANKS = 12
_MAX_TEXT = 500


def render_comparison(comparison: Comparison) -> str | None:
    """Markup for a notebook; None without jinja2: then the notebook shows the sentence as text."""
    try:
        from jinja2 import Environment
    except ModuleNotFoundError:
        return None
    template = Environment(autoescape=True).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(**_describe(comparison))


def _describe(comparison: Comparison) -> dict[str, Any]:
    verdict, ranks = comparison.verdict, comparison.ranks
    return {
        "headline": _line(verdict.headline),
        "agrees": bool(comparison),
        "is_open": verdict.kind in NO_ANSWER,
        "evidence": [_line(line) for line in verdict.evidence[:_MAX_LINES]],
        "hidden": max(0, len(verdict.evidence) - _MAX_LINES),
        "statuses": STATUSES,
        "ranks": [_describe_rank(rank) for rank in ranks[:_MAX_RANKS]],
        "more_ranks": max(0, len(ranks) - _MAX_RANKS),
        "problems": [_line(problem) for problem in comparison.problems[:_MAX_LINES]],
        "reference": _line(comparison.reference),
        "candidate": _line(comparison.candidate),
    }


def _describe_rank(rank: RankResult) -> dict[str, Any]:
    counts = rank.value_counts
    return {
        "name": _line(rank.reference_name),
        "calls": f"{rank.coverage.reference_calls:,}",
        "paired": f"{rank.coverage.paired_reference:,}",
        "counts": [f"{counts[status]:,}" for status in STATUSES],
        "kind": rank.verdict.kind,
    }


def _line(text: str) -> str:
    return shorten(clean(text), _MAX_TEXT)
