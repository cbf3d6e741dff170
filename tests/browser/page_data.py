"""Data of a page as the builders of `report/page` make it, of any size and with any names, without a run."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

HOSTILE = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">\'"`${1}&lt;\u202e'

OPERATIONS = ("linear", "gelu", "layer_norm", "matmul", "softmax", "dropout", "add")
STATISTICS = ("max", "min", "mean", "norm")


class Texts:
    """Each text once, known by its number."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, text: str | None) -> int:
        if text is None:
            return -1
        if text not in self._numbers:
            self._numbers[text] = len(self.listed)
            self.listed.append(text)
        return self._numbers[text]


class Columns(dict[str, list[Any]]):
    """A table that grows by lines."""

    def __init__(self, texts: Texts) -> None:
        super().__init__()
        self._texts = texts

    def add(self, **cells: Any) -> None:
        for name, value in cells.items():
            is_text = isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity")
            if is_text or name == "because":
                self.setdefault(f"{name}_s", []).append(self._texts.add(value))
            else:
                self.setdefault(name, []).append(value)


def make_comparison(layers: int = 4, places: int = 1, prefix: str = "blocks") -> dict[str, Any]:
    """A comparison whose source is the GELU of layer 1; two values a call go in, one comes out."""
    texts, chance = Texts(), random.Random(0)
    calls, rows = Columns(texts), Columns(texts)
    source = _fill_comparison(calls, rows, chance, (layers, places, prefix))
    side = _make_side(prefix)
    stacks = _add_stacks(calls, texts)
    first_row = calls["first_row"][source]
    names = [f"step{number}/rank0" for number in range(places)]
    return {
        "version": 1,
        "kind": "comparison",
        "tensorprobe": "0.9",
        "title": f"source: {prefix}",
        "reference": f"/data/{prefix}/reference",
        "candidate": f"/data/{prefix}/candidate",
        "verdict": {
            "kind": "source",
            "headline": f"The runs first differ at Functional.gelu.1.forward in module {prefix}.1.mlp: "
            "the same inputs give other results.",
            "evidence": [
                "its inputs are equal; its output has a relative error of 4.7e-04; rounding allows 2.4e-07",
                "worst element [3, 0, 60]: candidate -0.1597, reference -0.1588",
                "executed again in float64, the reference's result is the true one",
            ],
            "agrees": False,
            "place": 0,
            "call": source,
            "effect": 0.983,
            "loss": {"reference": 3.4996731, "candidate": 3.5013408},
            "sides": {"reference": side, "candidate": {**side, "source": {**side["source"], "lines": CANDIDATE_LINES}}},
            "commands": [
                {
                    "what": "show the call of the candidate",
                    "command": "tensorprobe show /data/candidate --call Functional.gelu.1.forward",
                },
                {
                    "what": "a script that repeats the call of the candidate",
                    "command": "tensorprobe repro /data/candidate gelu.1 -o repro.py",
                },
            ],
            "script": {"side": "candidate", "call": "Functional.gelu.1.forward", "text": SCRIPT},
        },
        "others": _make_others(calls, source),
        "statements": [
            {"label": "calls", "text": "1 source · 12 propagated · 42 clean", "mark": ""},
            {
                "label": "coverage",
                "text": "all 56 calls of the reference and all 56 of the candidate have a partner",
                "mark": "",
            },
            {"label": "", "text": "not compared: the value was not recorded (2)", "mark": "doubtful"},
            {"label": "problems", "text": "step0/rank0: two files are missing", "mark": "bad"},
        ],
        "places": names,
        "matrix": _make_matrix(places),
        "strings": texts.listed,
        "stacks": stacks,
        "calls": dict(calls),
        "rows": dict(rows),
        "details": {str(first_row + number): make_detail() for number in range(calls["row_count"][source])},
        "graph": make_graph(source, prefix),
        "coverage": {
            "share": 0.964,
            "value_share": 0.99,
            "reference_calls": 56,
            "candidate_calls": 58,
            "paired_reference": 54,
            "paired_candidate": 54,
            "idle_reference": 2,
            "idle_candidate": 4,
            "values": 168,
            "compared_values": 166,
            "uncompared_values": 2,
        },
        "unpaired": [
            {
                "place": "step0/rank0",
                "side": "candidate",
                "call": "Tensor.contiguous.3.forward",
                "module_path": f"{prefix}.2.attention",
                "caller": None,
                "nearest": "Tensor.transpose.3.forward",
                "why": "other operation",
            }
        ],
        "problems": ["step0/rank0: two files are missing"],
        "circumstances": [{"key": "torch", "reference": "2.12.0", "candidate": "2.13.0", "places": []}],
        "counts": {},
    }


SCRIPT = 'import torch\n\nprint(torch.nn.functional.gelu(torch.ones(2), approximate="tanh"))  # </script>\n'
REFERENCE_LINES = [
    "    def forward(self, x):",
    "        x = self.norm(x)",
    "        hidden = self.up(x)",
    '        hidden = F.gelu(hidden, approximate="none")',
    "        hidden = self.dropout(hidden)",
    "        return self.down(hidden)",
]
CANDIDATE_LINES = [line.replace('"none"', '"tanh"') for line in REFERENCE_LINES]


def _add_stacks(calls: Columns, texts: Texts) -> list[list[int]]:
    """Of every call that is not clean; the candidate's has one frame more."""
    is_told = [texts.listed[role] != "clean" for role in calls["role_s"]]
    for number, side in enumerate(("reference", "candidate")):
        calls[f"stack_{side}"] = [number if told else -1 for told in is_told]
    frames = [texts.add("model.py:52 in forward: x = self.norm(x)"), texts.add("train.py:88 in step: loss = model(x)")]
    return [frames, [frames[0], texts.add("wrapper.py:7 in call: return inner(x)"), frames[1]]]


def _make_side(prefix: str) -> dict[str, Any]:
    return {
        "calls": ["Functional.gelu.1.forward"],
        "module": f"{prefix}.1.mlp",
        "location": "model.py:41 in forward: hidden = F.gelu(hidden)",
        "source": {"file": "model.py", "line": 41, "first": 38, "lines": REFERENCE_LINES},
        "stack": ["model.py:41 in forward: hidden = F.gelu(hidden)", "train.py:88 in step: loss = model(batch)"],
    }


def _fill_comparison(calls: Columns, rows: Columns, chance: random.Random, shape: tuple[int, int, str]) -> int:
    """Forward and backward of every place; returns the number of the source's call."""
    layers, places, prefix = shape
    source = -1
    for place in range(places):
        plan = [(layer, operation) for layer in range(layers) for operation in OPERATIONS]
        steps = [("forward", *one) for one in plan] + [("backward", *one) for one in reversed(plan)]
        seen_source = False
        for direction, layer, operation in steps:
            is_source = place == 0 and direction == "forward" and (layer, operation) == (1, "gelu")
            if is_source:
                source, seen_source = len(calls.get("place", [])), True
            role = "source" if is_source else "propagated" if seen_source else "clean"
            module = f"{prefix}.{layer}.{'mlp' if operation in ('linear', 'gelu', 'dropout') else 'attention'}"
            _add_call(calls, rows, chance, (place, f"Functional.{operation}.{layer}.{direction}", module, role))
    for side in ("reference", "candidate"):
        name = "Tensor.contiguous.3.forward"
        _add_row(rows, chance, -1, 0, (name, None if side == "reference" else name, "not comparable", None))
    return source


def _add_call(calls: Columns, rows: Columns, chance: random.Random, what: tuple[int, str, str, str]) -> None:
    place, name, module, role = what
    number, first = len(calls.get("place", [])), len(rows.get("call", []))
    tolerance = 2.4e-7 * (1 + chance.random())
    drift = 1 + number / 40
    error = {"source": 4.7e-4, "propagated": 1e-4 * math.exp(chance.gauss(0, 1)), "clean": 0.0}[role]
    if role == "clean" and number % 3:
        error = 6e-8 * math.exp(chance.gauss(0, 0.6))
    into = error * 0.7 if role == "propagated" else 0.0
    calls.add(
        place=place,
        name=name,
        reference=name,
        candidate=name,
        module=module,
        direction=name.rpartition(".")[2],
        operation=name.split(".")[1],
        role=role,
        rule="same name",
        because={"source": "equal inputs, different results", "propagated": "its inputs differ"}.get(role),
        error=error,
        tolerance=tolerance,
        input_error=into,
        truth_reference=5e-8 * drift * math.exp(chance.gauss(0, 0.3)),
        truth_candidate=max(error, 5e-8 * drift) * math.exp(chance.gauss(0, 0.3)),
        location_reference="model.py:41 in forward: hidden = F.gelu(hidden)",
        location_candidate="model.py:41 in forward: hidden = F.gelu(hidden)",
        first_row=first,
        row_count=3,
        is_framework_made=False,
    )
    for slot, value in (("input.0", into), ("input.1", 0.0), ("output.0", error)):
        status = "equal" if value == 0 else "different" if value > tolerance else "close"
        _add_row(rows, chance, number, place, (f"{name}.{slot}", f"{name}.{slot}", status, value))
    rows["tolerance"][-3:] = [tolerance] * 3


def _add_row(rows: Columns, chance: random.Random, call: int, place: int, what: tuple[Any, ...]) -> None:
    reference, candidate, status, error = what
    known = call >= 0
    statistics = {name: chance.gauss(0, 3) for name in STATISTICS}
    moved = {name: value * (1 + (error or 0)) for name, value in statistics.items()}
    rows.add(call=call, place=place)
    rows.setdefault("reference_name_s", []).append(rows._texts.add(reference))
    rows.setdefault("candidate_name_s", []).append(rows._texts.add(candidate))
    rows.setdefault("reason_s", []).append(rows._texts.add(None if known else "only in one run"))
    for name, text in (("dtype", "float32"), ("shape", "[4, 128, 256]")):
        for side in ("reference", "candidate"):
            rows.setdefault(f"{side}_{name}_s", []).append(rows._texts.add(text if known else None))
    rows.add(
        status=status,
        error=error,
        tolerance=None,
        is_equal=error == 0 if known else None,
        cosine=1 - (error or 0) ** 2 if known else None,
        max_abs_error=error * 3.1 if known else None,
        mean_abs_error=error * 0.4 if known else None,
        relative_l2=error if known else None,
        max_ulp=int(error * 2**24) if known else None,
        element_count=131072 if known else None,
        **{f"reference_{name}": statistics[name] if known else None for name in STATISTICS},
        **{f"candidate_{name}": moved[name] if known else None for name in STATISTICS},
        **{f"{name}_difference": moved[name] - statistics[name] if known else None for name in STATISTICS},
        **{f"{name}_relative_difference": error if known else None for name in STATISTICS},
    )


def _make_others(calls: Columns, source: int) -> list[dict[str, Any]]:
    return [
        {
            "call": number,
            "place": 0,
            "name": calls._texts.listed[calls["name_s"][number]],
            "role": "propagated",
            "because": "its inputs differ",
            "effect": 0.01 if number == source + 1 else None,
            "error": calls["error"][number],
            "tolerance": calls["tolerance"][number],
        }
        for number in range(source + 1, source + 12)
    ]


def _make_matrix(places: int) -> dict[str, Any] | None:
    if places < 2:
        return None
    kinds = [["source" if step == 0 else "unequal start" if step % 3 else "agree"] for step in range(places)]
    return {"steps": list(range(places)), "ranks": ["rank0"], "kinds": kinds}


def make_detail(size: int = 24) -> dict[str, Any]:
    """Histograms of a bell, and a heat map with one wrong row."""
    bins = 48
    edges = [-4 + 8 * number / bins for number in range(bins + 1)]
    counts = [round(9000 * math.exp(-((edge + 0.08) ** 2) / 2)) for edge in edges[:-1]]
    reference = [[math.sin(row / 3) * math.cos(column / 4) for column in range(size)] for row in range(size)]
    difference = [[(4e-4 if row == 7 else 2e-7) * math.sin(column) for column in range(size)] for row in range(size)]
    candidate = [
        [one + other for one, other in zip(*both, strict=True)] for both in zip(reference, difference, strict=True)
    ]
    return {
        "histogram": {
            "edges": edges,
            "reference": counts,
            "candidate": [*counts[2:], 0, 0],
            "difference_edges": [edge * 1e-4 for edge in edges],
            "difference": counts,
        },
        "heat": {
            "title": f"[0, :, :] of 4 × {size} × {size}",
            "index": [0],
            "reference": reference,
            "candidate": candidate,
            "difference": difference,
        },
        "metrics": {"relative_max": 4.7e-4},
    }


def make_graph(source: int, prefix: str) -> dict[str, Any]:
    """Three calls of the reference against one of the candidate."""
    nodes: list[dict[str, Any]] = []

    def add(side: str, kind: str, label: str, place: tuple[int, int], state: str) -> int:
        call = source if kind == "call" else None
        name = f"Functional.{label}.1.forward" if kind == "call" else label
        nodes.append(
            {
                "id": len(nodes),
                "side": side,
                "kind": kind,
                "label": label,
                "name": name,
                "call": call,
                "column": place[0],
                "row": place[1],
                "state": state,
                "shape": "4 × 128 × 256" if kind == "value" else "",
            }
        )
        return len(nodes) - 1

    given, weight = (
        add("reference", "value", "input.0", (0, 0), "equal"),
        add("reference", "value", f"{prefix}.1.up.weight", (0, 1), "equal"),
    )
    chain = [
        add("reference", "call", name, (1 + 2 * index, 0), "source") for index, name in enumerate(("mul", "erf", "add"))
    ]
    between = [add("reference", "value", "output.0", (2 + 2 * index, 0), "unmatched") for index in range(2)]
    result = add("reference", "value", "output.0", (6, 0), "different")
    other_given, other_weight = (
        add("candidate", "value", "input.0", (0, 0), "equal"),
        add("candidate", "value", f"{prefix}.1.up.weight", (0, 1), "equal"),
    )
    other = add("candidate", "call", "gelu", (1, 0), "source")
    other_result = add("candidate", "value", "output.0", (6, 0), "different")
    path = [given, chain[0], between[0], chain[1], between[1], chain[2], result]
    edges = [*pairwise(path), (weight, chain[0])]
    others = [(other_given, other), (other_weight, other), (other, other_result)]
    return {
        "nodes": nodes,
        "edges": [
            {"from": first, "to": second, "side": side}
            for side, pairs in (("reference", edges), ("candidate", others))
            for first, second in pairs
        ],
        "joins": [
            {"reference": given, "candidate": other_given, "state": "equal"},
            {"reference": weight, "candidate": other_weight, "state": "equal"},
            {"reference": result, "candidate": other_result, "state": "different"},
        ],
    }


def make_agreement() -> dict[str, Any]:
    """Two runs that agree: much of what a page can show is not there."""
    data = make_comparison(layers=2)
    nothing = {"call": None, "place": None, "effect": None, "loss": None, "commands": [], "evidence": []}
    sides = {"reference": None, "candidate": None}
    data["verdict"] = {"kind": "agree", "headline": "The runs agree.", "agrees": True, "sides": sides, **nothing}
    return {**data, "others": [], "graph": None, "details": {}, "unpaired": [], "problems": [], "circumstances": []}


def make_hostile() -> dict[str, Any]:
    """Every text of the dump tries to be markup, ends elements, or is a formula."""
    data = make_comparison(layers=2, prefix="blocks")
    texts = data["strings"]
    keep = {"forward", "backward", "equal", "close", "different", "not comparable", "source", "propagated", "clean"}
    data["strings"] = [text if text in keep else f"{text}{HOSTILE}" for text in texts]
    verdict = data["verdict"]
    verdict["headline"] += HOSTILE
    verdict["evidence"] = [HOSTILE, "]]><!--", "=cmd()"]
    for side in verdict["sides"].values():
        side["calls"], side["module"], side["stack"] = [HOSTILE], HOSTILE, [HOSTILE]
        side["source"] = {**side["source"], "file": HOSTILE, "lines": [HOSTILE] * 6}
    for node in data["graph"]["nodes"]:
        node["label"] = node["name"] = node["shape"] = HOSTILE
    for other in data["others"]:
        other["name"] = other["because"] = HOSTILE
    data["title"] = data["reference"] = data["places"][0] = HOSTILE
    data["problems"] = [HOSTILE]
    data["unpaired"] = [dict.fromkeys(("place", "side", "call", "module_path", "nearest", "why"), HOSTILE)]
    return data
