"""PyTorch, as the engine sees it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.recursion import room
from tensorprobe.capture.torch.allocation import patch_allocation
from tensorprobe.capture.torch.api_name import ApiNames
from tensorprobe.capture.torch.backward_pass import BackwardPasses
from tensorprobe.capture.torch.boundary import patch_functions, patch_scripted, watch_optimizers
from tensorprobe.capture.torch.call_context import count_regions
from tensorprobe.capture.torch.call_mode import CallMode, CallRunner, WatchMode
from tensorprobe.capture.torch.checkpoint import Checkpoints
from tensorprobe.capture.torch.collective import Collectives
from tensorprobe.capture.torch.collective_patch import CollectivePatches
from tensorprobe.capture.torch.compiled import CompiledRegions
from tensorprobe.capture.torch.cuda_graph import patch_cuda_graphs
from tensorprobe.capture.torch.dropout import is_dropout_inert
from tensorprobe.capture.torch.engine import patch_engine
from tensorprobe.capture.torch.gradient import GradientTracer
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.mode_stack import enter_below, is_on_stack, modes_above, remove_mode
from tensorprobe.capture.torch.module_call import ModuleNames, ModulePatch, ModuleRunner
from tensorprobe.capture.torch.point_gradient import watch_gradient
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.stance import check_stance, run_eagerly
from tensorprobe.capture.torch.verification import VerifyingReader, is_wanted
from tensorprobe.config.api_list import ApiList
from tensorprobe.errors import UsageError

logger = logging.getLogger("tensorprobe")

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120  frames carry texts, and there are many
# Files that only pass calls on: no use in a stack.
_MAX_WRITERS = 4
_NOISE = (
    "nn/modules/module.py",
    "nn/functional.py",
    "functional.py",
    "overrides.py",
    "_tensor.py",
    "_ops.py",
    "_compile.py",
    "utils/_contextlib.py",
    "utils/_device.py",
    "autograd/function.py",
    "autograd/grad_mode.py",
    "_dynamo/",
)
# Parts of torch that make calls of their own, not on behalf of the user's line.
_CALLERS = (
    ("optim/", "optimizer"),
    ("distributed/", "distributed"),
    ("nn/parallel/", "distributed"),
    ("nn/utils/clip_grad.py", "clipping"),
    ("amp/", "amp"),
    ("cuda/amp/", "amp"),
    ("utils/data/", "dataloader"),
    ("nn/modules/", None),  # the layers of a model make the user's calls
    ("nn/attention/", None),
)


class TorchFramework:
    """The adapter of PyTorch."""

    name = "pytorch"

    def __init__(self, api_list: ApiList | None = None, *, writes_npy: bool = False) -> None:
        self._names = ApiNames(api_list)
        self._writes_npy = writes_npy
        self.file_suffix = "npy" if writes_npy else "pt"
        self._gradients: GradientTracer | None = None
        self._above: list[Any] = []
        """The modes that the program had entered inside the last window, and not left before its end."""

    def rank(self) -> int | None:
        return current_rank()

    def takes_part(self) -> bool:
        return True

    def has_idle_core(self) -> bool:
        return bool(count_cores() > torch.get_num_threads())

    def count_writers(self) -> int:
        """Several where a device computes: the page cache takes more from several threads than from one."""
        return max(1, min(_MAX_WRITERS, count_cores() // 4)) if torch.cuda.is_initialized() else 1

    def check_models(self, model: Any) -> list[tuple[str, torch.nn.Module]]:
        if model is None:
            return []
        is_several = isinstance(model, (list, tuple))
        models = list(model) if is_several else [model]
        for item in models:
            if not isinstance(item, torch.nn.Module):
                raise UsageError(
                    f"start(model) takes a torch.nn.Module, or a list or tuple of them, not {type(item).__name__}"
                )
        return [(str(index) if is_several else "", item) for index, item in enumerate(models)]

    def check_eager(self) -> None:
        check_stance()

    def make_reader(self, *, has_stats: bool, digest_kind: str | None) -> TorchReader:
        kind = VerifyingReader if is_wanted() else TorchReader
        return kind(has_stats=has_stats, digest_kind=digest_kind, writes_npy=self._writes_npy)

    def is_noise(self, path: str) -> bool:
        return path.startswith(_TORCH_FOLDER) and path[len(_TORCH_FOLDER) :].startswith(_NOISE)

    def caller_of(self, path: str) -> str | None:
        if not path.startswith(_TORCH_FOLDER):
            return None
        inside = path[len(_TORCH_FOLDER) :]
        return next((caller for start, caller in _CALLERS if inside.startswith(start)), "")

    def install(self, recorder: Recorder, models: Sequence[tuple[str, Any]]) -> Undo:
        """Begin to see calls, in the order: modules, boundaries, the mode."""
        reader = recorder.reader
        assert isinstance(reader, TorchReader)
        reader.forget()
        gradients = self._gradients = self._gradients or GradientTracer(recorder)
        gradients.forget_passes()
        names = ModuleNames(models, recorder.note_failure, adopts_layers=recorder.records_layers, roots=recorder.roots)

        def follow_parameters() -> None:
            reader.parameter_names, reader.list_parameters = names.parameter_names(), names.parameter_names
            gradients.set_parameters(names.parameters() if recorder.records_modules else {})
            gradients.reduced.follow((named.stem, named.owner) for named in names.reduced() if recorder.records_modules)

        follow_parameters()
        if recorder.roots is not None:
            names.after_adoption = follow_parameters
        window = Window(CallRunner(recorder, reader, gradients, self._names), names)
        with ExitStack() as undos:  # what was installed before a failure is taken back
            undos.callback(watch_optimizers(reader.doubt))
            undos.callback(window.install())
            if window.mode is not None:
                undos.callback(self._leave_mode, window.mode)
                enter_below(window.mode, self._above)
            undos.callback(window.close)
            # another tensor may be made in the same place
            undos.callback(setattr, reader, "parameter_names", {})
            undos.callback(setattr, reader, "list_parameters", dict)
            return undos.pop_all().close

    def _leave_mode(self, mode: CallMode) -> None:
        self._above = modes_above(mode)
        leave_mode(mode)

    def end_step(self) -> None:
        if self._gradients is not None:
            self._gradients.remove_parameter_hooks()
            self._gradients.reduced.follow(())

    def watch_gradient(
        self,
        recorder: Recorder,
        tensors: Sequence[Any],
        receive: Callable[[int, Any], None],
        finish: Callable[[], None],
    ) -> Undo | None:
        gradients = self._gradients = self._gradients or GradientTracer(recorder)
        return watch_gradient(recorder, gradients, tensors, receive, finish)

    def hidden(self) -> AbstractContextManager[Any]:
        return hidden()

    def circumstances(self) -> dict[str, Any]:
        return {
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
            "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            if torch.cuda.is_initialized()
            else ["cpu"],
            "settings": describe_settings(),
        }


class Window:
    """What is in place between start and stop, and once more while a region of its graph is recomputed after stop."""

    def __init__(self, calls: CallRunner, names: ModuleNames) -> None:
        recorder = calls.recorder
        self._calls = calls
        self._watch = CallMode(calls) if recorder.records_apis else WatchMode(calls)
        self.mode = calls.mode = self._watch if recorder.records_apis else None
        """None where API calls are not recorded."""
        self._modules = ModuleRunner(calls, names, self.mode)
        self._patch = ModulePatch(self._modules)
        self._checkpoints = Checkpoints(recorder, calls.gradients, self.mode, self.reopen)

    def install(self) -> Undo:
        """All patches; the mode comes after them."""
        calls = self._calls
        with ExitStack() as undos:
            undos.callback(self._patch.remove)
            self._patch.install()
            undos.callback(self._checkpoints.install())
            undos.callback(patch_functions(calls, self._checkpoints))
            undos.callback(patch_cuda_graphs(calls))
            undos.callback(count_regions())
            if self.mode is not None:
                undos.callback(patch_scripted(calls))
                undos.callback(patch_allocation(calls, self.mode))
            undos.callback(CollectivePatches(Collectives(calls, self.mode), calls).install())
            if calls.recorder.runs_compiled_eagerly:
                undos.callback(run_eagerly())
            undos.callback(CompiledRegions(calls, self._watch, self._patch).install())
            passes = BackwardPasses(calls.recorder, calls.reader)
            undos.callback(patch_engine(self._watch, calls.gradients, calls.reader, passes))
            return undos.pop_all().close

    def close(self) -> None:
        self._calls.is_active = self._modules.is_active = False
        room.give_back()
        self._calls.gradients.set_parameters({})  # what is hooked stays hooked; the model need not be held

    def reopen(self) -> Undo:
        """Record again, in a window that may be closed."""
        if self._calls.is_active:
            return nothing
        self._calls.is_active = self._modules.is_active = True
        if self._calls.recorder.records_modules:
            self._calls.gradients.set_parameters(self._modules.names.parameters())
        undo = self.install()

        def close_again() -> None:
            undo()
            self.close()

        return close_again


def leave_mode(mode: CallMode) -> None:
    if not is_on_stack(mode):
        logger.warning(
            "stop() was called in another thread than start(): what this thread calls is not recorded any more"
        )
    remove_mode(mode)


def count_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def current_rank() -> int | None:
    """The rank in the process group; before there is one, what the launcher says; None in a single process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    if os.environ.get("RANK", "").isdecimal() and os.environ.get("WORLD_SIZE", "").isdecimal():
        return int(os.environ["RANK"])
    return None


def describe_settings() -> dict[str, Any]:
    """Settings that change numbers."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "mkldnn": torch._C._get_mkldnn_enabled(),  # torch itself turns it off where it fails in bfloat16
        "torch_seed": torch.initial_seed(),
        "numpy_state": int(np.random.get_state()[1][0]),  # type: ignore[index]
        "grad_enabled": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        **({"dropout_removed": True} if is_dropout_inert() else {}),
    }
