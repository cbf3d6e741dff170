"""MindSpore, as the engine sees it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import mindspore
import numpy as np
from mindspore import context
from mindspore._c_expression import RuntimeConf

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.mindspore.adapter import adapter_dialect, explain_foreign
from tensorprobe.capture.mindspore.api_name import ApiNames, ApiOwner
from tensorprobe.capture.mindspore.call_mode import CallMode
from tensorprobe.capture.mindspore.call_patch import CallPatch, CallRunner
from tensorprobe.capture.mindspore.collective import CollectivePrimitives, Collectives
from tensorprobe.capture.mindspore.compiled import CompiledRegions
from tensorprobe.capture.mindspore.dialect import MINDSPORE, Dialect
from tensorprobe.capture.mindspore.dropout import is_dropout_inert
from tensorprobe.capture.mindspore.gradient import GradientTracer
from tensorprobe.capture.mindspore.graph_call import GraphCalls, is_graph_mode
from tensorprobe.capture.mindspore.hiding import hidden
from tensorprobe.capture.mindspore.module_call import ModuleNames, ModulePatch, ModuleRunner
from tensorprobe.capture.mindspore.point_gradient import watch_gradient
from tensorprobe.capture.mindspore.primitive_call import PrimitivePatch
from tensorprobe.capture.mindspore.rank import current_rank, is_scheduler
from tensorprobe.capture.mindspore.reader import MindSporeReader
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.recursion import room
from tensorprobe.config.api_list import ApiList
from tensorprobe.errors import ConfigError, UsageError

logger = logging.getLogger("tensorprobe")

TRIED_VERSIONS = ("2.7.1", "2.8.0", "2.9.0", "2.10.0")

_FOLDER = os.path.dirname(mindspore.__file__) + os.sep  # noqa: PTH120  frames carry texts, and there are many
# Files that only pass calls on: no use in a stack.
_NOISE = ("nn/cell.py", "ops/", "common/", "graph/", "_extends/", "mint/__init__.py", "mint/nn/functional.py", "utils/")
# Parts of MindSpore that make calls of their own, not on behalf of the user's line.
_CALLERS = (
    ("nn/optim/", "optimizer"),
    ("experimental/optim/", "optimizer"),
    ("mint/optim/", "optimizer"),
    ("mint/distributed/", "distributed"),
    ("communication/", "distributed"),
    ("parallel/", "distributed"),
    ("nn/wrap/grad_reducer.py", "distributed"),
    ("amp.py", "amp"),
    ("train/amp.py", "amp"),
    ("nn/wrap/loss_scale.py", "amp"),
    ("dataset/", "dataloader"),
    ("nn/", None),  # the layers of a model make the user's calls
    ("mint/nn/", None),
)


class MindSporeFramework:
    """The adapter of MindSpore, and of MSAdapter on top of it."""

    file_suffix = "npy"

    def __init__(self, api_list: ApiList | None = None, *, writes_npy: bool = False) -> None:
        check_version()
        self._writes_npy = writes_npy
        self._names = ApiNames(api_list)
        self._gradients: GradientTracer | None = None
        self._graphs: GraphCalls | None = None
        self._calls: CallRunner | None = None
        self._mode: CallMode | None = None
        self._patch: CallPatch | None = None
        self._owners: list[ApiOwner] = []

    @property
    def _dialect(self) -> Dialect:
        """How this program is written. A program may import its torch later than this debugger is made."""
        return adapter_dialect() or MINDSPORE

    @property
    def name(self) -> str:
        return self._dialect.name

    def rank(self) -> int | None:
        return current_rank()

    def takes_part(self) -> bool:
        return not is_scheduler()

    def has_idle_core(self) -> bool:
        return False  # MindSpore computes on all of them

    def count_writers(self) -> int:
        return 1

    def check_models(self, model: Any) -> list[tuple[str, Any]]:
        if model is None:
            return []
        is_several = isinstance(model, (list, tuple))
        models = list(model) if is_several else [model]
        dialect = self._dialect
        for item in models:
            if not isinstance(item, dialect.module_type):
                raise UsageError(
                    f"start(model) takes a {dialect.module_type_name}, or a list or tuple of them, "
                    f"not {type(item).__name__}{explain_foreign(item)}"
                )
        return [(str(index) if is_several else "", item) for index, item in enumerate(models)]

    def check_eager(self) -> None:
        raise ConfigError(
            'compiled "eager" is an option for torch.compile, and MindSpore has no such switch: leave it out, and to '
            "look inside compiled functions use mindspore.set_context(mode=mindspore.PYNATIVE_MODE) or remove @jit"
        )

    def make_reader(self, *, has_stats: bool, digest_kind: str | None) -> MindSporeReader:
        return MindSporeReader(has_stats=has_stats, digest_kind=digest_kind, writes_npy=self._writes_npy)

    def is_noise(self, path: str) -> bool:
        if path.startswith(_FOLDER):
            return path[len(_FOLDER) :].startswith(_NOISE)
        return self._dialect.is_noise(path)

    def caller_of(self, path: str) -> str | None:
        if not path.startswith(_FOLDER):
            return self._dialect.caller_of(path)
        inside = path[len(_FOLDER) :]
        return next((caller for start, caller in _CALLERS if inside.startswith(start)), "")

    def install(self, recorder: Recorder, models: Sequence[tuple[str, Any]]) -> Undo:
        """Begin to see calls, in the order: functions, primitives, modules, compiled regions."""
        reader = recorder.reader
        assert isinstance(reader, MindSporeReader)
        reader.forget()
        reader.notes_parts = self._dialect is MINDSPORE  # dumps of MSAdapter are not executed again
        gradients = self._gradients = self._gradients or GradientTracer(recorder)
        gradients.forget_passes()
        names = ModuleNames(
            models,
            recorder.note_failure,
            self._dialect,
            adopts_layers=recorder.records_layers,
            roots=recorder.roots,
        )
        follow_parameters(recorder, reader, gradients, names)
        calls = CallRunner(recorder, reader, gradients, self._names) if self._calls is None else self._calls
        modules = ModuleRunner(calls, names)
        graphs = self._graphs = self._graphs or GraphCalls(recorder)
        patches: list[Any] = [ModulePatch(modules)]
        if recorder.records_apis:
            patches = self._surround(patches, calls, names, has_models=bool(models))
        self._calls, calls.is_active = calls, True
        if recorder.roots is not None:
            names.after_adoption = partial(self._adopt, recorder, names, patches)

        def close() -> None:
            graphs.finish()
            calls.is_active = modules.is_active = False
            room.give_back()
            gradients.close_window()

        with ExitStack() as undos:  # what was installed before a failure is taken back
            for patch in patches:
                undos.callback(patch.remove)
                patch.install()
            undos.callback(setattr, reader, "parameter_names", {})  # another tensor may be made in the same place
            undos.callback(CompiledRegions(calls, patches, graphs, names).install())
            undos.callback(close)
            return undos.pop_all().close

    def _adopt(self, recorder: Recorder, names: ModuleNames, patches: Sequence[Any]) -> None:
        """The program has called another model."""
        assert isinstance(recorder.reader, MindSporeReader) and self._gradients is not None
        follow_parameters(recorder, recorder.reader, self._gradients, names)
        for patch in patches:
            if isinstance(patch, PrimitivePatch):
                patch.follow(names.primitives())

    def _surround(self, patches: list[Any], calls: CallRunner, names: ModuleNames, *, has_models: bool) -> list[Any]:
        """What sees functions and primitives, around what sees modules."""
        mode = self._mode = self._mode or CallMode(calls, is_recording=has_models)
        mode.is_recording = has_models
        return [
            Collectives(calls),
            self._find_patch(calls),
            PrimitivePatch(calls, names.primitives()),
            CollectivePrimitives(calls),
            *patches,
            mode,
        ]

    def _find_patch(self, calls: CallRunner) -> CallPatch:
        """The replacements for functions: the same in every window, unless the program has imported more of them."""
        owners = self._dialect.owners()
        if self._patch is None or self._owners is not owners:
            self._patch, self._owners = CallPatch(calls, owners), owners
        return self._patch

    def end_step(self) -> None:
        if self._graphs is not None:
            self._graphs.end_step()
        if self._gradients is not None:
            self._gradients.remove_parameter_hooks()

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
            "versions": {"mindspore": mindspore.__version__, **self._dialect.versions()},
            "devices": [context.get_context("device_target")],
            "settings": describe_settings(),
        }


def follow_parameters(
    recorder: Recorder, reader: MindSporeReader, gradients: GradientTracer, names: ModuleNames
) -> None:
    """From now on the parameters of these modules have their names, and their gradients are recorded."""
    reader.parameter_names = names.parameter_names()
    # where hooks would be compiled, graphs have others
    is_hooked = recorder.records_modules and not is_graph_mode()
    gradients.set_parameters(names.parameters() if is_hooked else {})


def check_version() -> None:
    """Gradients of calls are read from the nodes of the graph, which older versions do not show."""
    if not hasattr(mindspore.Tensor, "_grad_node") or not hasattr(mindspore.Tensor, "_output_index"):
        raise UsageError(
            f"MindSpore {mindspore.__version__} does not show the graph that gradients are read from. tensorprobe was "
            f"tried with MindSpore {', '.join(TRIED_VERSIONS)}"
        )


def describe_settings() -> dict[str, Any]:
    """Settings that change numbers."""
    modes = {mindspore.GRAPH_MODE: "GRAPH_MODE", mindspore.PYNATIVE_MODE: "PYNATIVE_MODE"}
    return {
        "mode": modes.get(context.get_context("mode"), "unknown"),
        "device_target": context.get_context("device_target"),
        "deterministic": context.get_context("deterministic"),
        "runtime_num_threads": context.get_context("runtime_num_threads"),
        "inter_op_parallel_num": context.get_context("inter_op_parallel_num"),
        "threads_num_is_set": RuntimeConf.get_instance().is_op_threads_num_configured(),  # to how many is not told
        "mindspore_seed": mindspore.get_seed(),
        "numpy_state": int(np.random.get_state()[1][0]),  # type: ignore[index]
        **({"dropout_removed": True} if is_dropout_inert() else {}),
    }
