"""`api_dump_init`, `api_dump_start`, `api_dump_stop`, `api_dump_compare`: TroubleShooter's names over the engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe.errors import UsageError

if TYPE_CHECKING:
    from tensorprobe.capture.api_dump.session import ApiDumpSession
    from tensorprobe.compare.result import Comparison

_session: ApiDumpSession | None = None


def api_dump_init(
    net: Any,
    output_path: str | os.PathLike[str] = "./ts_api_dump",
    *,
    retain_backward: bool = False,
    min_free: int | str | None = None,
) -> None:
    """Say what is recorded, a torch.nn.Module or a mindspore.nn.Cell, and where. `retain_backward`: gradients too.
    `min_free`: recording stops while so much is still free on the disk, such as `"5GB"`; None: 1 GB, or 2 % of a small
    disk; 0: the disk is not looked at.

    A second call begins anew: what the first has recorded is complete, and counters start at 0.
    """
    global _session
    from tensorprobe.capture.api_dump.session import ApiDumpSession
    from tensorprobe.capture.context import framework_of, make_framework
    from tensorprobe.config.api_dump import read_min_free, read_output

    folder, min_free_bytes = read_output(output_path, retain_backward), read_min_free(min_free)
    framework = _name_framework(net, framework_of)
    existing, _session = _session, None
    if existing is not None:
        existing.close()
    adapter = make_framework(framework, writes_npy=True)
    _session = ApiDumpSession(net, adapter, folder, retains_backward=retain_backward, min_free=min_free_bytes)


def api_dump_start(
    mode: str = "all",
    scope: Sequence[str] = [],  # as the manual has it; nobody changes it
    dump_type: str = "all",
    filter_data: bool = True,
) -> None:
    """Begin to record, or go on with a selection of its own.

    `mode`: `all`; `list`, the calls that scope names; `range`, from its first name to its second; `api_list`, all
    calls that have one of its words in their names. `dump_type`: `all`, or `statistics` without tensor files.
    `filter_data`: single numbers and tensors that hold no floating-point numbers are not saved.
    """
    from tensorprobe.config.api_dump import read_options

    _current("api_dump_start").start_window(read_options(mode, scope, dump_type, filter_data))


def api_dump_stop() -> None:
    """Stop recording; the files are complete after it. The backward of what was recorded still comes in."""
    _current("api_dump_stop").stop()


def api_dump_compare(
    origin_path: str | os.PathLike[str],
    target_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Compare two dumps of the same or of different frameworks: print which calls were paired, how their values
    compare, and which call went wrong first. `output_path`: a folder for the tables as CSV files."""
    from tensorprobe.migrator.api_dump_comparison import compare_api_dumps

    return compare_api_dumps(origin_path, target_path, output_path)


def _current(function: str) -> ApiDumpSession:
    if _session is None:
        raise UsageError(f"{function}() was called before api_dump_init(net): call that first, with the network")
    return _session


def _name_framework(net: Any, framework_of: Any) -> str:
    if not isinstance(net, (list, tuple)) and net is not None:
        try:
            return str(framework_of(net))
        except UsageError:
            pass
    raise UsageError(f"api_dump_init: net is a torch.nn.Module or a mindspore.nn.Cell, not {type(net).__name__}")
