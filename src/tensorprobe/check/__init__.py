"""Record and compare in one call. What records and compares is imported when it is first used."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorprobe.errors import UsageError
from tensorprobe.model.count import count_noun

if TYPE_CHECKING:
    from tensorprobe.compare.result import Comparison


def check(reference: Callable[..., Any], candidate: Callable[..., Any], *inputs: Any, **options: Any) -> Comparison:
    """Call both with the same inputs, record what they compute, forward and backward, and compare the two runs.

    Each is a model or a function; one and the same may be given twice, with a `dtype`, a `device` or a `setting` for
    the candidate. The options are explained in docs/check.md: `kwargs`, `loss`, `backward`, `level`, `task`, `seed`,
    `keep`, `dtype`, `device`, `setting`, and those of `compare`.

        result = tensorprobe.check(model, torch.compile(model), x)
        if not result:
            print(result.verdict.headline)
    """
    from tensorprobe.check.engine import check_functions
    from tensorprobe.check.option import make_check_options

    return check_functions(reference, candidate, inputs, make_check_options(options))


def assert_runs_agree(reference: Any, candidate: Any, *inputs: Any, **options: Any) -> Comparison:
    """AssertionError, with the verdict as its text, unless the runs agree.

    Two paths are compared as `tensorprobe.compare` does, two models or functions as `tensorprobe.check` does.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    from tensorprobe.check.engine import describe_verdict

    paths = [isinstance(side, (str, os.PathLike)) for side in (reference, candidate)]
    if paths[0] != paths[1] or (all(paths) and inputs):
        raise UsageError(
            "assert_runs_agree takes two dumps (paths) and no inputs, or two models or functions and their inputs, not "
            f"{type(reference).__name__}, {type(candidate).__name__} and {count_noun(len(inputs), 'input')}."
        )
    if all(paths):
        from tensorprobe.compare import compare

        found = compare(reference, candidate, **options)
    else:
        found = check(reference, candidate, *inputs, **options)
    if not found:
        raise AssertionError(describe_verdict(found))
    return found
