"""CUDA graphs. While one is captured nothing may be launched, fetched or waited for that is not the user's: calls are
only counted. A replay is one record without values, and afterwards no value is known any more: it writes where it was
told to when it was captured, without a new version.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import replace, run_all
from tensorprobe.capture.torch.call_mode import CallRunner

REPLAYED = "CUDA graph replay"
_NOTE = "a CUDA graph: what it computed is in the tensors it was captured with"


def patch_cuda_graphs(runner: CallRunner) -> Undo:
    """Follow captures and replays."""
    graph = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay
    recorder = runner.recorder

    def capture_begin(instance: Any, *args: Any, **kwargs: Any) -> Any:
        if runner.is_active and recorder.sink is not None:
            runner.is_graph_captured = True
            try:
                recorder.sink.hold()
            except Exception as error:
                recorder.note_failure("what waited when a CUDA graph was captured", error)
        return begin(instance, *args, **kwargs)

    def capture_end(instance: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(instance, *args, **kwargs)
        finally:
            if runner.is_graph_captured and recorder.sink is not None:
                recorder.sink.release()
            runner.is_graph_captured = False

    def replay_graph(instance: Any) -> Any:
        if not runner.is_active:
            return replay(instance)
        recorder.coverage.add_unseen(REPLAYED)
        runner.reader.doubt()
        if not runner.records_apis:
            return replay(instance)
        api = runner.names.make("Jit", "CUDAGraph", note=_NOTE)
        return runner.run(api, lambda: replay(instance), (), {})

    undos = [
        replace(graph, "capture_begin", capture_begin),
        replace(graph, "capture_end", capture_end),
        replace(graph, "replay", replay_graph),
    ]
    return lambda: run_all(undos)
