"""What `compare` says, for programs: strict JSON, in which NaN and Infinity are strings.

One document, written in pieces: the verdict and the summary, then every row on a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from tensorprobe._version import __version__
from tensorprobe.compare.result import CallResult, Coverage, RankResult, Verdict
from tensorprobe.compare.row import COLUMNS, Block
from tensorprobe.report.column_text import LineForm, iter_lines
from tensorprobe.report.compare_summary import Matrix, Source, Summary, UnpairedCall
from tensorprobe.report.json import encode, encode_made
from tensorprobe.store.frame import describe_frame

_ROW_FORM = LineForm(encode, ", ", {name: f"{encode(name)}: " for name in COLUMNS})


def write_json(
    file: BinaryIO, summary: Summary, blocks: Iterable[Block], more: Mapping[str, Any] | None = None
) -> None:
    """The document as a file."""
    for piece in iter_compare_json(summary, blocks, more):
        file.write(piece.encode("ascii"))


def iter_compare_json(
    summary: Summary, blocks: Iterable[Block], more: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """The document, piece by piece; `more` is what else stands in it."""
    head = {key: encode(value) for key, value in _describe(summary).items()}
    head |= {key: encode_made(value) for key, value in (more or {}).items()}
    yield "{" + ",\n".join(f"{encode(key)}: {text}" for key, text in head.items())
    yield ',\n"rows": ['
    separator = "\n"
    for block in blocks:
        for line in iter_lines(block, _ROW_FORM):
            yield f"{separator}{{{line}}}"
            separator = ",\n"
    yield "\n]}\n"


def _describe(summary: Summary) -> dict[str, Any]:
    comparison = summary.comparison
    return {
        "tensorprobe": __version__,
        "reference": comparison.reference,
        "candidate": comparison.candidate,
        "agree": bool(comparison),
        "verdict": _describe_verdict(comparison.verdict),
        "circumstances": [
            {"key": one.key, "reference": one.reference, "candidate": one.candidate, "places": one.places}
            for one in summary.circumstances
        ],
        "notes": summary.notes,
        "counts": {
            "calls": summary.calls,
            "framework_calls": summary.framework_calls,
            "tensors": summary.tensors,
            "arguments": summary.arguments,
            "bases": summary.bases,
            "obstacles": summary.obstacles,
            "fallbacks": summary.fallbacks,
        },
        "coverage": describe_coverage(summary.coverage),
        "matrix": describe_matrix(summary.matrix),
        "sources": [_describe_source(source) for source in summary.sources],
        "unpaired": [describe_unpaired(one) for one in (*summary.unpaired, *summary.idle, *summary.framework_unpaired)],
        "problems": summary.problems,
        "ranks": [_describe_rank(rank) for rank in comparison.ranks],
    }


def _describe_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "headline": verdict.headline,
        "evidence": verdict.evidence,
        "step": verdict.step,
        "rank_name": verdict.rank_name,
        "call": None if verdict.call is None else _describe_call(verdict.call),
        "suspects": [call.name for call in verdict.suspects],
    }


def _describe_call(call: CallResult) -> dict[str, Any]:
    return {
        "reference": [one.name for one in call.reference],
        "candidate": [one.name for one in call.candidate],
        "module_path": call.module_path,
        "rule": call.rule,
        "role": call.role,
        "because": call.because,
        "reference_location": describe_frame(call.reference_location) if call.reference_location else None,
        "candidate_location": describe_frame(call.candidate_location) if call.candidate_location else None,
    }


def _describe_source(source: Source) -> dict[str, Any]:
    worst = source.worst
    numbers = {"error": worst.error if worst else None, "tolerance": worst.tolerance if worst else None}
    return {"place": source.place, **_describe_call(source.call), **numbers}


def describe_coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "share": coverage.share,
        "value_share": coverage.value_share,
        "reference_calls": coverage.reference_calls,
        "candidate_calls": coverage.candidate_calls,
        "paired_reference": coverage.paired_reference,
        "paired_candidate": coverage.paired_candidate,
        "idle_reference": coverage.idle_reference,
        "idle_candidate": coverage.idle_candidate,
        "values": coverage.values,
        "compared_values": coverage.compared_values,
        "uncompared_values": coverage.uncompared_values,
        "unseen_reference": dict(coverage.unseen_reference),
        "unseen_candidate": dict(coverage.unseen_candidate),
    }


def describe_matrix(matrix: Matrix) -> dict[str, Any]:
    kinds = [[matrix.kind(step, rank) for rank in matrix.ranks] for step in matrix.steps]
    return {"steps": matrix.steps, "ranks": matrix.ranks, "kinds": kinds}


def describe_unpaired(one: UnpairedCall) -> dict[str, Any]:
    call, nearest = one.found.call, one.found.nearest
    return {
        "place": one.place,
        "side": one.side,
        "call": call.name,
        "module_path": call.module_path,
        "caller": call.caller,
        "nearest": None if nearest is None else nearest.name,
        "why": one.found.why,
    }


def _describe_rank(rank: RankResult) -> dict[str, Any]:
    return {
        "step": rank.step,
        "reference_name": rank.reference_name,
        "candidate_name": rank.candidate_name,
        "verdict": _describe_verdict(rank.verdict),
        "coverage": describe_coverage(rank.coverage),
        "counts": {"values": dict(rank.value_counts), "calls": dict(rank.role_counts), "bases": dict(rank.bases)},
        "is_cut_short": rank.is_cut_short,
        "problems": rank.problems,
    }
