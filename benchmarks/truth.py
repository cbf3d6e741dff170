"""How much of a run can be replayed, how exactly, and what that costs.

    python benchmarks/truth.py models                    ten models, five precisions: calls, bits, errors, findings
    python benchmarks/truth.py models --model Llama T5 --precision float32
    python benchmarks/truth.py speed --repeat 7          a replay against the plain step, in one process, taking turns
    python benchmarks/truth.py compare --repeat 5        comparing two steps by truth, against the plain step
    python benchmarks/truth.py memory                    the peak of a replay against what its values need in float64

`models` prints a row a model and precision: how many calls were recorded and how many of them replayed in float64,
which were pinned and why, how many recorded floating-point values (results and gradients) come out bit for bit in the
recorded precision, the largest error of a value against its truth, and how many things `truth` finds wrong: none.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import tensorprobe
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.gradient_sum import find_broken_sums
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.precision import Precision
from tensorprobe.replay.program import Program, read_program
from tensorprobe.replay.recorded import RecordedTensors, is_bit_equal
from tensorprobe.replay.truth import find_truths
from tensorprobe.run.leaf import iter_leaves
from tensorprobe.store.reader import open_dump

sys.path.insert(0, str(Path(__file__).parent))
import gpt
import zoo

PRECISIONS = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "autocast bfloat16": (torch.float32, torch.bfloat16),
    "autocast float16": (torch.float32, torch.float16),
}
SCALE = 64.0
"""Of the loss in float16, so that small gradients are not lost."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("models", "speed", "compare", "memory"))
    parser.add_argument("--model", nargs="*", default=zoo.NAMES, choices=zoo.NAMES)
    parser.add_argument("--precision", nargs="*", default=list(PRECISIONS), choices=list(PRECISIONS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dump", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    if options.dump:
        print(measure_peak(Path(options.dump)))
    elif options.what == "models":
        compare_models(options.model, options.precision)
    else:
        with tempfile.TemporaryDirectory() as folder:
            ways = {"speed": compare_speed, "compare": compare_pairs, "memory": compare_memory}
            ways[options.what](Path(folder), options)


# -- models ------------------------------------------------------------------------------------------------------------


def compare_models(models: list[str], precisions: list[str]) -> None:
    print("| model | precision | calls | replayed | pinned | equal bits | worst error | wrong |")
    print("|---|---|---|---|---|---|---|---|")
    for model in models:
        for precision in precisions:
            with tempfile.TemporaryDirectory() as folder:
                record(model, precision, Path(folder))
                print(f"| {model} | {precision} | {' | '.join(describe(Path(folder)))} |", flush=True)


def record(model: str, precision: str, folder: Path) -> None:
    """One training step with its tensors."""
    dtype, cast = PRECISIONS[precision]
    trial = zoo.make_trial(model, dtype)
    with tensorprobe.capture(trial.model, folder, level="mix", task="tensor") as run:
        with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
            loss = trial.loss(dtype)
        (loss * SCALE if "float16" in precision and "b" not in precision else loss).backward()
        run.step()


def describe(folder: Path) -> Iterator[str]:
    """The columns of a row."""
    program = read(folder)
    bits = Bits(program)
    replay = Replay(program, Precision("recorded"), torch.device("cpu"), bits)
    replay.pin_gradients(find_broken_sums(program, replay.recorded))
    bits.recorded = replay.recorded
    replay.run()
    bits.hold_gradients()
    truth = find_truths([read(folder)], torch.device("cpu"))[0]
    coverage = truth.coverage
    errors = [row.share_of(truth.largest_gradient) for row in truth.rows if row.accumulated is not None]
    pinned = [f"{coverage.random} random"] if coverage.random else []
    pinned += [f"{name}: {reason}" for name, reason in coverage.gaps.items()]
    yield f"{coverage.call_count:,}"
    yield f"{coverage.replayed / coverage.call_count:.1%}"
    yield "; ".join(pinned) or "none"
    yield f"{bits.equal:,} of {bits.total:,}"
    yield f"{max(errors):.1e}"
    yield str(len(truth.findings))


class Bits(Onlooker):
    """Counts the values of a replay that are those recorded."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.recorded: RecordedTensors | None = None
        self._gradients: dict[tuple[str, str], torch.Tensor] = {}
        self.equal = self.total = 0

    def see_results(self, operation: Any, tensors: Any) -> None:
        for leaf in operation.outputs:
            if leaf.slot in tensors and leaf.is_floating:
                self._hold(leaf, tensors[leaf.slot])

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        self._gradients[record, slot] = gradient.clone()

    def hold_gradients(self) -> None:
        for record, fields in self._program.gradients.items():
            roots = {"input": "input", "output": "output", "output_kwargs": "kwargs"}
            for field, tree in fields.items():
                for leaf in iter_leaves(tree, roots.get(field, field)):
                    slot = leaf.slot if field in roots else field
                    found = self._gradients.get((record, slot))
                    self.total += found is None
                    if found is not None:
                        self._hold(leaf, found)

    def _hold(self, leaf: Any, tensor: torch.Tensor) -> None:
        assert self.recorded is not None
        self.total += 1
        self.equal += is_bit_equal(self.recorded.load(leaf), tensor)


def read(folder: Path) -> Program:
    return read_program(next(open_dump(folder).ranks()))


# -- speed -------------------------------------------------------------------------------------------------------------


class Reading:
    """The seconds that were spent with reading files."""

    def __init__(self) -> None:
        self.seconds = 0.0
        original = RecordedTensors.load

        def load(recorded: RecordedTensors, leaf: Any) -> torch.Tensor:
            start = time.perf_counter()
            try:
                return original(recorded, leaf)
            finally:
                self.seconds += time.perf_counter() - start

        RecordedTensors.load = load  # type: ignore[method-assign]

    def time(self, run: Any) -> float:
        """Without the reading."""
        self.seconds, start = 0.0, time.perf_counter()
        run()
        return time.perf_counter() - start - self.seconds


def compare_speed(folder: Path, options: argparse.Namespace) -> None:
    program = gpt.make_program(gpt.SIZES["cpu"], "cpu")
    capture_gpt(program, folder)
    reading, cpu = Reading(), torch.device("cpu")

    def step() -> None:
        program.model.zero_grad()
        program.forward_backward()

    ways = {
        "plain step, float32": step,
        "replay in the recorded precision": lambda: Replay(read(folder), Precision("recorded"), cpu).run(),
        "replay in float64": lambda: Replay(read(folder), Precision("float64"), cpu).run(),
        "truth: every call alone besides": lambda: find_truths([read(folder)], cpu),
    }
    for run in ways.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeat):
        for name, run in ways.items():
            times[name].append(reading.time(run))
    plain = times["plain step, float32"]
    print("| | time | of a plain step |\n|---|---|---|")
    for name, found in times.items():
        ratio = statistics.median(one / other for one, other in zip(found, plain, strict=True))
        print(f"| {name} | {statistics.median(found) * 1000:.0f} ms | {ratio:.1f}× |")


def capture_gpt(program: gpt.Program, folder: Path) -> None:
    with tensorprobe.capture(program.model, folder, level="mix", task="tensor") as run:
        program.forward_backward()
        run.step()


# -- two runs ----------------------------------------------------------------------------------------------------------


def compare_pairs(folder: Path, options: argparse.Namespace) -> None:
    """The time of the processor, so that what else the machine does counts little; all in one process."""
    program = gpt.make_program(gpt.SIZES["cpu"], "cpu")
    fused = torch.nn.functional.scaled_dot_product_attention
    ways = {"reference": fused, "other order of sums": fused, "written out": attend, "wrong scale": attend_wrongly}
    for name, function in ways.items():
        torch.nn.functional.scaled_dot_product_attention = function
        with torch.backends.mkldnn.flags(enabled=name != "other order of sums"):
            program.model.zero_grad()
            capture_gpt(program, folder / name)
    torch.nn.functional.scaled_dot_product_attention = fused
    times: dict[str, list[float]] = {name: [] for name in ways}
    verdicts: dict[str, str] = {}
    for _ in range(options.repeat):
        for name in ways:
            start = time.process_time()
            if name == "reference":
                program.model.zero_grad()
                program.forward_backward()
            else:
                result = tensorprobe.compare(folder / "reference", folder / name, processes=1)
                verdicts[name] = result.verdict.kind
            times[name].append(time.process_time() - start)
    print("| the candidate's attention | verdict | time | of a plain step |\n|---|---|---|---|")
    for name, verdict in verdicts.items():
        ratio = statistics.median(one / other for one, other in zip(times[name], times["reference"], strict=True))
        print(f"| {name} | {verdict} | {statistics.median(times[name]):.1f} s | {ratio:.1f}× |")


def attend(query: Any, key: Any, value: Any, is_causal: bool = False, scale: float = 1.0, **_: Any) -> torch.Tensor:
    """In single calls."""
    scores = query @ key.transpose(-1, -2) * (scale / query.shape[-1] ** 0.5)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ value


def attend_wrongly(query: Any, key: Any, value: Any, **settings: Any) -> torch.Tensor:
    return attend(query, key, value, scale=1.1, **settings)


# -- memory ------------------------------------------------------------------------------------------------------------


def compare_memory(folder: Path, options: argparse.Namespace) -> None:
    program = gpt.make_program(gpt.SIZES["cpu"], "cpu")
    capture_gpt(program, folder)
    parameters = sum(8 * parameter.numel() for parameter in program.model.parameters())
    activations = count_saved(program)
    command = [sys.executable, __file__, "memory", "--threads", str(options.threads), "--dump", str(folder)]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    needed = parameters + activations
    print(f"parameters {parameters / 1e6:.0f} MB, live activations {activations / 1e6:.0f} MB, in float64")
    print(f"peak of a replay in float64: {peak / 1e6:.0f} MB, {peak / needed:.1f} times that")


def count_saved(program: gpt.Program) -> int:
    """The bytes, in float64, of what autograd keeps of a step for its backward; without the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in program.model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            width = 2 if tensor.is_floating_point() else 1
            saved[storage.data_ptr()] = storage.nbytes() * width
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        program.forward_backward()
    return sum(saved.values())


def measure_peak(folder: Path) -> int:
    """By how many bytes a replay makes this process grow, at most. Linux only: it has the peak start anew."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = read_peak()
    Replay(read(folder), Precision("float64"), torch.device("cpu")).run()
    return read_peak() - before


def read_peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
