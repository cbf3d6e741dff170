"""Which call of each network of examples/migration belongs to which in the other framework: read off their sources.

Every API call has a label: one for all calls of a module, or one for each in the order in which the module makes them.
A pair, or a pair of groups, is right when both sides have the same labels. Modules belong together by their paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorprobe.compare.match.alignment import Alignment, Match
from tensorprobe.model.name import FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run

Labels = Mapping[str | None, str | tuple[str, ...]]


@dataclass(frozen=True)
class PairTruth:
    pytorch: Labels
    mindspore: Labels
    modules: Mapping[str, str]
    """Paths in PyTorch and in MindSpore, of the modules that both have."""


class Labeller:
    """Knows the label of each API call of one run; a backward call has that of its forward call."""

    def __init__(self, run: Run, labels: Labels) -> None:
        self.of: dict[str, str] = {}
        made: dict[str | None, int] = {}
        for call in run.calls:
            if call.kind == "api" and call.direction == FORWARD and call.caller is None:
                found = labels[call.module_path]
                place = made[call.module_path] = made.get(call.module_path, -1) + 1
                self.of[call.name] = found if isinstance(found, str) else found[place]
        for call in run.calls:
            if call.kind == "api" and call.name not in self.of and call.caller is None:
                self.of[call.name] = self.of[call.in_direction(FORWARD)]


def find_wrong(alignment: Alignment, runs: tuple[Run, Run], truth: PairTruth) -> list[Match]:
    """The pairs that do not belong together."""
    reference, candidate = Labeller(runs[0], truth.pytorch), Labeller(runs[1], truth.mindspore)
    wrong = []
    for match in alignment.matches:
        if match.reference[0].caller is not None:
            continue
        if match.reference[0].kind == "api":
            labels = {reference.of[call.name] for call in match.reference}
            is_right = labels == {candidate.of[call.name] for call in match.candidate}
            directions = {call.direction for call in (*match.reference, *match.candidate)}
            is_right = is_right and len(directions) == 1
        else:
            one, other = match.reference[0], match.candidate[0]
            is_right = truth.modules.get(one.path) == other.path and one.direction == other.direction
        if not is_right:
            wrong.append(match)
    return wrong


def find_missed(alignment: Alignment, runs: tuple[Run, Run], truth: PairTruth) -> tuple[list[Call], int]:
    """The calls without a partner although there is one, and how many have one, in both runs."""
    labellers = Labeller(runs[0], truth.pytorch), Labeller(runs[1], truth.mindspore)
    lonely = {
        unpaired.call.name
        for unpaired in (*alignment.only_reference, *alignment.only_candidate)
        if not unpaired.is_idle
    }
    missed = []
    count = 0
    for call, labeller, other in _calls(runs, labellers):
        paths = truth.modules if labeller is labellers[0] else truth.modules.values()
        has_partner = labeller.of[call.name] in other.of.values() if call.kind == "api" else call.path in paths
        count += has_partner
        if has_partner and call.name in lonely:
            missed.append(call)
    return missed, count


def _calls(runs: tuple[Run, Run], labellers: tuple[Labeller, Labeller]) -> Iterator[tuple[Call, Labeller, Labeller]]:
    for side, run in enumerate(runs):
        for call in run.calls:
            if call.caller is None:
                yield call, labellers[side], labellers[1 - side]


def _same(*paths: str) -> dict[str | None, str | tuple[str, ...]]:
    return {path: path for path in paths}


MLP = PairTruth(
    {**_same("fc1", "norm", "fc2", "fc3"), "": ("flatten", "relu", "gelu", "sum"), None: "loss"},
    {**_same("flatten", "fc1", "norm", "relu", "fc2", "gelu"), "": "sum", "classifier": "fc3", None: "loss"},
    {"": "", "fc1": "fc1", "norm": "norm", "fc2": "fc2", "fc3": "classifier"},
)

_IN_BLOCK = ("conv1", "bn1", "conv2", "bn2")
_IN_CNN = ("stem.0", "stem.1", "stem.2", "pool", "down", "fc")
CNN = PairTruth(
    {
        **_same(*_IN_CNN, *(f"layer{n}.{name}" for n in (1, 2) for name in _IN_BLOCK)),
        **{f"layer{n}": (f"first relu {n}", f"sum {n}", f"second relu {n}") for n in (1, 2)},
        "": ("leaky relu", "average"),
        "avgpool": "average",
        None: "loss",
    },
    {
        **_same(*_IN_CNN),
        **{f"block{n}.{name}": f"layer{n}.{name}" for n in (1, 2) for name in _IN_BLOCK},
        **{f"block{n}": f"sum {n}" for n in (1, 2)},
        **{f"block{n}.relu": (f"first relu {n}", f"second relu {n}") for n in (1, 2)},
        "": ("leaky relu", "average"),
        None: "loss",
    },
    {
        **{path: path for path in ("", "stem", *_IN_CNN)},
        **{f"layer{n}": f"block{n}" for n in (1, 2)},
        **{f"layer{n}.{name}": f"block{n}.{name}" for n in (1, 2) for name in _IN_BLOCK},
    },
)

LSTM = PairTruth(
    {
        **_same("embed", "proj", "out"),
        "lstm": ("first zeros", "second zeros", "lstm"),
        "": ("last state", "tanh"),
        None: ("log softmax", "loss"),
    },
    {
        **_same("proj", "out"),
        "embedding": "embed",
        "lstm": ("first zeros", "second zeros", *["lstm"] * 13),
        "lstm.rnn": "lstm",
        "": ("last state", "tanh"),
        None: ("log softmax", "loss"),
    },
    {"": "", "embed": "embedding", "lstm": "lstm", "proj": "proj", "out": "out"},
)

_IN_LAYER = ("self_attn", "norm1", "norm2")
ENCODER = PairTruth(
    {
        **_same("tokens", "classifier"),
        **_same(*(f"layers.{n}.{name}" for n in (0, 1) for name in (*_IN_LAYER, "linear1", "linear2"))),
        **{f"layers.{n}": (f"first sum {n}", f"gelu {n}", f"second sum {n}") for n in (0, 1)},
        **{f"layers.{n}.dropout": (f"first dropout {n}", f"second dropout {n}") for n in (0, 1)},
        "": ("scale", "positions", "mean"),
        None: "loss",
    },
    {
        **_same("tokens", "classifier"),
        **_same(*(f"layers.{n}.{name}" for n in (0, 1) for name in _IN_LAYER)),
        **{f"layers.{n}.ffn.0": f"layers.{n}.linear1" for n in (0, 1)},
        **{f"layers.{n}.ffn.1": f"gelu {n}" for n in (0, 1)},
        **{f"layers.{n}.ffn.2": f"layers.{n}.linear2" for n in (0, 1)},
        **{f"layers.{n}": (f"first sum {n}", f"second sum {n}") for n in (0, 1)},
        **{f"layers.{n}.dropout": (f"first dropout {n}", f"second dropout {n}") for n in (0, 1)},
        "": ("scale", "positions", "mean"),
        None: "loss",
    },
    {
        **{path: path for path in ("", "tokens", "classifier")},
        **{f"layers.{n}": f"layers.{n}" for n in (0, 1)},
        **{f"layers.{n}.{name}": f"layers.{n}.{name}" for n in (0, 1) for name in (*_IN_LAYER, "dropout")},
        **{f"layers.{n}.self_attn.out_proj": f"layers.{n}.self_attn.out_proj" for n in (0, 1)},
        **{f"layers.{n}.linear1": f"layers.{n}.ffn.0" for n in (0, 1)},
        **{f"layers.{n}.linear2": f"layers.{n}.ffn.2" for n in (0, 1)},
    },
)

_HEADS = ("query", "query heads", "key", "key heads", "value", "value heads")
_IN_GPT = {"ln_1": "ln_1", "attn.c_attn": "attn.c_attn", "attn.c_proj": "attn.c_proj", "ln_2": "ln_2",
           "c_fc": "up", "c_proj": "down", "dropout": "dropout"}  # fmt: skip


def _attention(n: int, calls: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name} {n}" for name in ("parts", *_HEADS, *calls))


GPT = PairTruth(
    {
        **_same("wte", "wpe", "ln_f", "lm_head", *(f"h.{n}.{name}" for n in (0, 1) for name in _IN_GPT)),
        **{f"h.{n}": (f"first sum {n}", f"second sum {n}") for n in (0, 1)},
        **{f"h.{n}.act": f"gelu {n}" for n in (0, 1)},
        **{f"h.{n}.attn": _attention(n, ("attention", "merge", "merge", "join")) for n in (0, 1)},
        "": ("places", "sum"),
        None: ("rows", "labels", "loss"),
    },
    {
        **_same("wte", "wpe", "ln_f", "lm_head"),
        **{f"blocks.{n}.{other}": f"h.{n}.{name}" for n in (0, 1) for name, other in _IN_GPT.items()},
        **{f"blocks.{n}": (f"first sum {n}", f"gelu {n}", f"second sum {n}") for n in (0, 1)},
        **{f"blocks.{n}.attn": _attention(n, ("attention",) * 8 + ("merge", "join")) for n in (0, 1)},
        "": ("places", "sum"),
        None: ("rows", "labels", "loss"),
    },
    {
        **{path: path for path in ("", "wte", "wpe", "ln_f", "lm_head")},
        **{f"h.{n}": f"blocks.{n}" for n in (0, 1)},
        **{f"h.{n}.attn": f"blocks.{n}.attn" for n in (0, 1)},
        **{f"h.{n}.{name}": f"blocks.{n}.{other}" for n in (0, 1) for name, other in _IN_GPT.items()},
    },
)

TRUTHS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "encoder": ENCODER, "gpt": GPT}
