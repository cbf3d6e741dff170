"""Are the right calls paired? Edits whose truth is known, over real models, and how long 10,000 calls take.

    python benchmarks/alignment.py                    all models, edits and levels: the tables of docs/alignment.md
    python benchmarks/alignment.py --model gpt --edit "layer missing" --seeds 10
    python benchmarks/alignment.py --time             the times only

Each model is recorded once at each level, with statistics. The edit is made in the records (`run_edit.py`), at places
drawn from a seed; from there on all computed values differ, parameters do not. Calls that the framework made itself do
not count. `difflib` is what one gets from difflib.SequenceMatcher over operations and shapes of the whole run.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from run_edit import RunEdit, Truth
from tests.capture.torch.models import GPT, MODELS

from tensorprobe.compare.match.align import align_calls
from tensorprobe.pytorch import PrecisionDebugger
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import open_dump
from tensorprobe.word.spelling import canonical_op

LEVELS = ("L0", "L1", "mix", "flat")
"""flat: as msprobe writes level L1, without module paths and data flow."""
MODEL_NAMES = ("gpt", "cnn", "lstm", "llama", "t5")
LAYERS = 6

Edit = Callable[[RunEdit], bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODEL_NAMES, action="append")
    parser.add_argument("--edit", choices=EDITS, action="append")
    parser.add_argument("--level", choices=LEVELS, action="append")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--time", action="store_true", help="only the times")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.time:
            print_pairs(options, Path(folder))
        print_times(Path(folder))


# -- models


def record(model: torch.nn.Module, run_step: Callable[[], torch.Tensor], level: str, folder: Path) -> Run:
    debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level=level)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger.start(model=model)
    run_step().backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    return read_run(next(open_dump(folder).ranks()))


def record_model(name: str, level: str, folder: Path) -> Run:
    torch.manual_seed(0)
    model, loss, batches = MODELS[name]()
    if name == "gpt":
        model = GPT(layers=LAYERS)
    return record(model, lambda: loss(model, batches[0]), level, folder / name / level)


# -- edits


def choose_layer(edit: RunEdit) -> tuple[str, int] | None:
    lists = edit.layer_lists()
    if not lists:
        return None
    depth = min(path.count(".") for path in lists)  # layers, not the parts of one
    path = edit.random.choice(sorted(path for path in lists if path.count(".") == depth))
    return path, edit.random.choice(lists[path])


def remove_layer(edit: RunEdit) -> bool:
    layer = choose_layer(edit)
    if layer is not None:
        edit.remove_layer(*layer)
    return layer is not None


def add_layer(edit: RunEdit) -> bool:
    layer = choose_layer(edit)
    if layer is not None:
        edit.add_layer(*layer)
    return layer is not None


def recompute_layer(edit: RunEdit) -> bool:
    layer = choose_layer(edit)
    if layer is not None:
        edit.recompute_layer(*layer)
    return layer is not None


def rename(edit: RunEdit) -> bool:
    words = {"blocks": "h", "attention": "mixer", "encoder": "first", "decoder": "second", "layers": "stages"}
    edit.rename_modules(lambda part: part if part.isdecimal() else words.get(part, f"{part}_2"))
    return True


def wrap(edit: RunEdit) -> bool:
    edit.wrap(*edit.random.choice([("module", "DistributedDataParallel"), ("_orig_mod", "OptimizedModule")]))
    return True


def needs_api(change: Callable[[RunEdit], None]) -> Edit:
    def changed(edit: RunEdit) -> bool:
        if not edit.forward_api():
            return False
        change(edit)
        return True

    return changed


def rename_and_remove(edit: RunEdit) -> bool:
    return remove_layer(edit) and rename(edit)


EDITS: dict[str, Edit] = {
    "wrapped": wrap,
    "renamed": rename,
    "layer missing": remove_layer,
    "layer added": add_layer,
    "renamed, layer missing": rename_and_remove,
    "1 call inserted": needs_api(lambda edit: edit.insert_calls(1)),
    "10 calls inserted": needs_api(lambda edit: edit.insert_calls(10)),
    "5 calls removed": needs_api(lambda edit: edit.remove_calls(5)),
    "modules written out": needs_api(lambda edit: edit.dissolve_modules(0.3)),
    "other spelling": needs_api(lambda edit: edit.respell()),
    "layer recomputed": recompute_layer,
}


# -- precision and recall


@dataclass
class Score:
    right: int = 0
    made: int = 0
    true: int = 0

    def add(self, pairs: Truth, truth: Truth) -> None:
        self.right += sum(truth.get(name) == other for name, other in pairs.items())
        self.made += len(pairs)
        self.true += len(truth)

    def __str__(self) -> str:
        return f"{100 * self.right / max(1, self.made):6.2f} {100 * self.right / max(1, self.true):6.2f}"


def print_pairs(options: argparse.Namespace, folder: Path) -> None:
    levels = options.level or LEVELS
    runs = {}
    for name in options.model or MODEL_NAMES:
        for level in levels:
            recorded = "L1" if level == "flat" else level
            if (name, recorded) not in runs:
                runs[name, recorded] = record_model(name, recorded, folder)
    for condition in ("parameters kept", "all values other"):
        print(f"\n{condition}: precision and recall in percent, then those of difflib\n")
        print(f"{'edit':24} " + "   ".join(f"{level:>27}" for level in levels))
        for edit_name in options.edit or EDITS:
            cells = []
            for level in levels:
                ours, plain = Score(), Score()
                for name in options.model or MODEL_NAMES:
                    for seed in range(options.seeds):
                        run = runs[name, "L1" if level == "flat" else level]
                        add_case(run, EDITS[edit_name], level, seed, condition, (ours, plain))
                cells.append(f"{ours} {plain}" if ours.true else f"{'':27}")
            print(f"{edit_name:24} " + "   ".join(cells), flush=True)


def add_case(run: Run, change: Edit, level: str, seed: int, condition: str, scores: tuple[Score, Score]) -> None:
    edit = RunEdit(run, seed)
    if not change(edit):
        return
    if condition == "parameters kept":
        edit.change_values_after(edit.first_difference())
    else:
        edit.change_all_values(keeps_weights=False)
    if level == "flat":
        edit.forget_modules()
    candidate, truth = edit.finish()
    if level == "flat":
        original = RunEdit(run, seed)
        original.forget_modules()
        run, _ = original.finish()
    counted = {call.name for call in run.calls if call.caller is None}
    truth = {name: other for name, other in truth.items() if name in counted}
    scores[0].add({name: other for name, other in our_pairs(run, candidate).items() if name in counted}, truth)
    scores[1].add({name: other for name, other in plain_pairs(run, candidate).items() if name in counted}, truth)


def our_pairs(reference: Run, candidate: Run) -> Truth:
    matches = align_calls(reference, candidate).matches
    return {match.reference[0].name: match.candidate[0].name for match in matches if not match.is_group}


def plain_pairs(reference: Run, candidate: Run) -> Truth:
    """One flat difflib over the whole run, by operation, direction and shapes."""
    keys = [
        [(canonical_op(call), call.direction, tuple(slot.shape for slot in call.tensors)) for call in run.calls]
        for run in (reference, candidate)
    ]
    pairs = {}
    for block in difflib.SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
        for place in range(block.size):
            pairs[reference.calls[block.a + place].name] = candidate.calls[block.b + place].name
    return pairs


# -- time


def print_times(folder: Path) -> None:
    print("\none layer missing: milliseconds of one core, median of 5\n")
    for level, layers in (("L0", 360), ("L1", 250), ("mix", 147), ("flat", 250)):
        recorded = "L1" if level == "flat" else level
        run = without_framework(record_large(layers, recorded, folder / f"large {level}"))
        edit = RunEdit(run, 0)
        edit.remove_layer("blocks", layers // 3)
        edit.change_values_after(edit.first_difference())
        if level == "flat":
            edit.forget_modules()
            original = RunEdit(run, 0)
            original.forget_modules()
            run, _ = original.finish()
        candidate, truth = edit.finish()
        seconds = []
        for _ in range(5):
            gc.collect()
            began = time.thread_time()
            pairs = our_pairs(run, candidate)
            seconds.append(time.thread_time() - began)
        right = sum(truth.get(name) == other for name, other in pairs.items())
        print(
            f"{level:5} {len(run.calls):6,} against {len(candidate.calls):6,} calls: "
            f"{1000 * statistics.median(seconds):5.0f} ms, {right:,} of {len(truth):,} pairs right",
            flush=True,
        )


def record_large(layers: int, level: str, folder: Path) -> Run:
    torch.manual_seed(0)
    model = GPT(layers=layers)
    tokens = torch.randint(0, 50, (2, 13))
    return record(
        model,
        lambda: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()),
        level,
        folder,
    )


def without_framework(run: Run) -> Run:
    edit = RunEdit(run, 0)
    edit.entries = [entry for entry in edit.entries if entry.call.caller is None]
    return edit.finish()[0]


if __name__ == "__main__":
    main()
