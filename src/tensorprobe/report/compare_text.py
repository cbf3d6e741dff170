"""What `compare` says, for people: the verdict first, then all that one needs to believe it.

On a terminal text wraps at its width; into a file or a pipe it goes whole. Names come from the dumps: they are shown as
they are, without control characters, and no text of them is taken for markup.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from tensorprobe.compare.result import NO_ANSWER, Comparison
from tensorprobe.model.count import count_noun
from tensorprobe.report.compare_statement import Statement, iter_statements
from tensorprobe.report.compare_summary import Matrix, Summary, summarize
from tensorprobe.report.console import Fact, print_command, print_facts, print_lines
from tensorprobe.report.escape import clean, shorten
from tensorprobe.report.next_command import iter_show_commands

_LABEL_WIDTH = 14
_MAX_LINE_TEXT = 2000
_MAX_RANK_TEXT = 24
_MAX_STEPS = 40
_KIND_STYLES: dict[str, str] = {"agree": "green", **dict.fromkeys(NO_ANSWER, "yellow")}
_DIFFERENT_STYLE = "red"
_MARK_STYLES = {"bad": "red", "doubtful": "yellow", "aside": "dim", "": ""}


WHERE_MORE = "-o DIR writes all of them"


def print_comparison(console: Console, comparison: Comparison, where_more: str = WHERE_MORE) -> None:
    """All that `compare` prints; `where_more` says where what does not fit here can be seen."""
    print_summary(console, summarize(comparison), where_more)


def print_summary(console: Console, summary: Summary, where_more: str = WHERE_MORE) -> None:
    """The same of a comparison that was summed up before."""
    _print_verdict(console, summary)
    print_facts(console, map(_fact, iter_statements(summary, where_more)))
    if summary.has_several_ranks:
        _print_matrix(console, summary.matrix)
    _print_next(console, summary)


def _print_verdict(console: Console, summary: Summary) -> None:
    verdict = summary.verdict
    print_facts(console, [Fact(Text(), Text(_line(verdict.headline), f"bold {_style_of(verdict.kind)}"))])
    print_facts(console, [Fact(Text("  "), Text(_line(line))) for line in verdict.evidence])
    print_lines(console, [Text()])


def _print_matrix(console: Console, matrix: Matrix) -> None:
    """Steps by ranks; as many ranks beside each other as a terminal has room for."""
    print_lines(console, [Text()])
    steps = _notable_steps(matrix)
    step_width = max(len(_step_name(step)) for step in matrix.steps)
    columns = [(rank, _rank_width(matrix, rank)) for rank in matrix.ranks]
    room = console.width - step_width - 2 if console.is_terminal else None
    for block in _blocks(columns, room):
        header = Text(" " * (step_width + 2))
        for rank, width in block:
            header.append(f"  {_rank_name(rank):<{width}}", "bold")
        lines = [header, *(_matrix_line(matrix, step, block, step_width) for step in steps)]
        for line in lines:
            line.rstrip()
        print_lines(console, lines)
    if len(steps) < len(matrix.steps):
        print_lines(console, [Text(f"  and {count_noun(len(matrix.steps) - len(steps), 'more step')}", "dim")])


def _notable_steps(matrix: Matrix) -> list[int | None]:
    """All of them, if they are few; else the first ones in which something differs."""
    if len(matrix.steps) <= _MAX_STEPS:
        return list(matrix.steps)
    kinds = {step: {matrix.kind(step, rank) for rank in matrix.ranks} for step in matrix.steps}
    return [step for step in matrix.steps if kinds[step] - {"agree", None}][:_MAX_STEPS]


def _matrix_line(matrix: Matrix, step: int | None, columns: list[tuple[str, int]], step_width: int) -> Text:
    line = Text(f"  {_step_name(step):<{step_width}}")
    for rank, width in columns:
        kind = matrix.kind(step, rank)
        line.append(f"  {kind or '-':<{width}}", _style_of(kind) if kind else "dim")
    return line


def _rank_width(matrix: Matrix, rank: str) -> int:
    return max(len(_rank_name(rank)), *(len(matrix.kind(step, rank) or "-") for step in matrix.steps))


def _blocks(columns: list[tuple[str, int]], room: int | None) -> Iterator[list[tuple[str, int]]]:
    """The columns that fit into the room, then the next ones; all of them when there is no limit."""
    block: list[tuple[str, int]] = []
    used = 0
    for rank, width in columns:
        used += width + 2
        if room is not None and used > room and block:
            yield block
            block, used = [], width + 2
        block.append((rank, width))
    yield block


def _print_next(console: Console, summary: Summary) -> None:
    """The commands to run next, with the paths filled in."""
    for number, one in enumerate(iter_show_commands(summary)):
        if not number:
            print_lines(console, [Text()])
        print_command(console, _label("" if number else "next"), one.command)


def _style_of(kind: str) -> str:
    return _KIND_STYLES.get(kind, _DIFFERENT_STYLE)


def _rank_name(name: str) -> str:
    return shorten(clean(name), _MAX_RANK_TEXT)


def _step_name(step: int | None) -> str:
    return "" if step is None else f"step{step}"


def _line(text: str) -> str:
    return shorten(clean(text), _MAX_LINE_TEXT)


def _label(label: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}"


def _fact(statement: Statement) -> Fact:
    return Fact(Text(_label(statement.label), "bold"), Text(_line(statement.text), _MARK_STYLES[statement.mark]))
