"""The tables that are printed: per kind of fault, per level and task, the false alarms, and every case that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fault.kind import KINDS
from fault.score import Score

HEADER = ("cases", "exact", "receiver", "wrong kind", "off", "missed", "error", "mean distance")


def format_faults(scores: Sequence[Score]) -> str:
    """One row a kind, and all of them together."""
    tools = sorted({score.tool for score in scores}, key=lambda tool: tool != "tensorprobe")
    lines = []
    for tool in tools:
        own = [score for score in scores if score.tool == tool]
        lines += [format_row(tool, HEADER)]
        lines += [format_row(name, count(rows)) for name, rows in group(own, lambda score: score.case.kind)]
        lines += [format_row("all", count(own)), ""]
        lines += [format_row("by model", HEADER)]
        lines += [format_row(name, count(rows)) for name, rows in group(own, lambda score: score.case.model)]
        lines += [""]
    return "\n".join(lines)


def format_settings(scores: Sequence[Score]) -> str:
    """One row a tool, level and task."""
    lines = [format_row("level, task", HEADER)]
    for name, rows in group(scores, describe_setting):
        lines.append(format_row(name, count(rows)))
    return "\n".join(lines)


def describe_setting(score: Score) -> str:
    setting = score.case.setting
    words = [score.tool, setting.level, setting.task]
    return " ".join(
        [*words, *([setting.dtype] if setting.dtype != "float32" else []), *([score.case.noise or ""])]
    ).strip()


def format_unfaulted(scores: Sequence[Score]) -> str:
    lines = [format_row("unfaulted pairs", ("pairs", "silent", "alarms", "error"))]
    for name, rows in group(scores, lambda score: f"{score.tool} {describe_difference(score)}"):
        outcomes = [score.outcome for score in rows]
        cells = len(rows), outcomes.count("silent"), outcomes.count("false alarm"), outcomes.count("error")
        lines.append(format_row(name, cells))
    return "\n".join(lines)


def describe_difference(score: Score) -> str:
    steps = score.case.setting.steps
    return (score.case.noise or "same run twice") + (f", {steps} steps" if steps > 1 else "")


def format_failures(scores: Iterable[Score]) -> str:
    lines = []
    for score in scores:
        if score.outcome in ("exact", "silent"):
            continue
        named = ", ".join(dict.fromkeys(score.saying.reference + score.saying.candidate)) or "nothing"
        lines.append(
            f"{score.tool} {score.outcome}: {score.case.name} ({score.case.setting.level}, {score.case.setting.task})"
        )
        lines.append(
            f"    said: {score.saying.verdict}, {named}" + (f", {score.distance} off" if score.distance else "")
        )
        if score.outcome == "error":
            lines.append(f"    {score.saying.text}")
        if score.truth:
            lines.append(f"    true: {', '.join(sorted(score.truth.names))}")
        lines.append(f"    {score.case.command}")
    return "\n".join(lines)


def group(scores: Iterable[Score], key: Callable[[Score], str]) -> list[tuple[str, list[Score]]]:
    found: dict[str, list[Score]] = {}
    for score in scores:
        found.setdefault(key(score), []).append(score)
    kinds = list(KINDS)
    return sorted(found.items(), key=lambda item: kinds.index(item[0]) if item[0] in kinds else -1)


def count(scores: Sequence[Score]) -> tuple[object, ...]:
    outcomes = [score.outcome for score in scores]
    distances = [
        score.distance for score in scores if score.outcome in ("off", "receiver") and score.distance is not None
    ]
    exact = f"{100 * outcomes.count('exact') / len(outcomes):.0f} %"
    rest = (outcomes.count(name) or "" for name in ("receiver", "wrong kind", "off", "missed", "error"))
    return len(scores), exact, *rest, f"{sum(distances) / len(distances):.1f}" if distances else ""


def format_row(name: str, cells: Iterable[object]) -> str:
    return f"{name:34}" + "".join(f"{cell!s:>14}" if len(str(cell)) > 10 else f"{cell!s:>11}" for cell in cells)
