"""Two runs, compared: align -> measure -> judge. Needs numpy only: a run from a cluster is compared on a laptop.

The engine is imported when it is first used: a program that is only recorded does not pay for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorprobe.compare.result import Comparison


def compare(reference: str | Path, candidate: str | Path, **options: Any) -> Comparison:
    """Compare two runs, and say which call went wrong first.

    Each is a dump_path, a folder of a step or a rank in it, or a dump.json or debug.json, of tensorprobe or msprobe.
    `options` are the fields of CompareOptions: mapping, step, rank, rtol, atol, first, processes, by,
    allow_uncompared, own_errors, engine.

        result = tensorprobe.compare("dump_gpu", "dump_npu")
        if not result:
            print(result.verdict.headline)
    """
    from tensorprobe.compare.engine import compare_runs
    from tensorprobe.compare.option import make_options

    return compare_runs(reference, candidate, make_options(options))
