"""Activation checkpointing, both kinds, and autograd Functions of the user's that do the same by hand: the calls made
in the forward are a region, and what the backward calls while it has gradients enabled repeats them.

The patches last as long as the window. What is repeated after `stop`, in the backward of a graph that was recorded, is
recorded too: all that is needed is put in place for the time of that recomputation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.utils.checkpoint

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing, replace, run_all
from tensorprobe.capture.recompute import Region, Replay
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.call_mode import CallMode
from tensorprobe.capture.torch.function_node import node_of
from tensorprobe.capture.torch.gradient import GradientTracer
from tensorprobe.capture.torch.mode_stack import is_on_stack, remove_mode

_HOOK = "_checkpoint_hook"
_REGION = "_tensorprobe_region"
_REENTRANT_NODE = "CheckpointFunctionBackward"


class Checkpoints:
    """Notes regions in the forward, and recognises them in the backward."""

    def __init__(
        self, recorder: Recorder, gradients: GradientTracer, mode: CallMode | None, reopen: Callable[[], Undo]
    ) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._mode = mode
        self._reopen = reopen
        """Makes a closed window record again, until what it returns is called."""

    def install(self) -> Undo:
        """Patch the non-reentrant kind: a context that it enters around the forward, and what it calls to repeat it. It
        was so in torch 2.4 to 2.13; where it is not, recomputed calls are counted as calls inside backward."""
        hook = getattr(torch.utils.checkpoint, _HOOK, None)
        if hook is None:
            return nothing
        make, enter, leave = hook.__init__, hook.__enter__, hook.__exit__

        def init_hook(context: Any, frame: Any) -> None:
            make(context, frame)
            self._watch_frame(context, frame)

        def enter_hook(context: Any) -> Any:
            self._recorder.recomputation.open_region(getattr(context, _REGION))
            return enter(context)

        def leave_hook(context: Any, *exception: Any) -> Any:
            self._recorder.recomputation.close_region(getattr(context, _REGION))
            return leave(context, *exception)

        undos = [
            replace(hook, "__init__", init_hook),
            replace(hook, "__enter__", enter_hook),
            replace(hook, "__exit__", leave_hook),
        ]
        return lambda: run_all(undos)

    def watch_function(self, apply: Callable[[], Any]) -> Any:
        """Run an autograd Function; what its backward repeats of the calls inside it is a recomputation."""
        region = self._recorder.recomputation.open_region()
        try:
            output = apply()
        finally:
            self._recorder.recomputation.close_region(region)
        node = node_of(output) if region else None
        if node is not None and type(node).__name__ == _REENTRANT_NODE:
            node.run_function = self._replayed(node.run_function, region, has_graph=True)
        elif node is not None:
            self._watch_node(node, region)
        return output

    def _watch_frame(self, context: Any, frame: Any) -> None:
        region = Region()
        setattr(context, _REGION, region)
        frame.recompute_fn = self._replayed(frame.recompute_fn, region, has_graph=False)

    def _replayed(self, function: Callable[..., Any], region: Region, *, has_graph: bool) -> Callable[..., Any]:
        """The function that torch calls to repeat a region, as the recomputation that it is."""
        generation = self._recorder.generation

        def replay(*args: Any, **kwargs: Any) -> Any:
            end = self._begin(Replay(region, has_graph=has_graph, is_exact=True), generation)
            try:
                return function(*args, **kwargs)
            finally:
                end()

        return replay

    def _watch_node(self, node: Any, region: Region) -> None:
        """A Function of the user's: its backward may repeat its forward, or not."""
        generation, reference, run = self._recorder.generation, weakref.ref(node), type(node).apply

        def apply(*gradients: Any) -> Any:
            end = self._begin(Replay(region, has_graph=True, is_exact=False), generation)
            try:
                return run(reference(), *gradients)
            finally:
                end()

        node.apply = apply  # what the engine calls; a hook after it would not run when it raises

    def _begin(self, replay: Replay, generation: int) -> Undo:
        """From now on calls are repetitions."""
        if self._recorder.generation != generation:
            return nothing
        with ExitStack() as undos:
            try:
                self._gradients.note_backward_pass()  # another pass may run inside this one
                undos.callback(self._recorder.recomputation.begin_replay(replay))
                undos.callback(self._reopen())
                mode = self._mode
                if mode is not None and not is_on_stack(mode):
                    mode.__enter__()
                    undos.callback(remove_mode, mode)
                return undos.pop_all().close
            except Exception as error:
                self._recorder.note_failure("a recomputation", error)
        return nothing
