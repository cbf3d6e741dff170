"""Data of the page of a single run, as its builder makes them."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.browser.page_data import OPERATIONS, Columns, Texts


def make_run(layers: int = 4) -> dict[str, Any]:
    """One run in float16, in which the softmax of layer 2 produces NaN."""
    texts, chance = Texts(), random.Random(1)
    calls, rows = Columns(texts), Columns(texts)
    plan = [(layer, operation) for layer in range(layers) for operation in OPERATIONS]
    steps = [("forward", *one) for one in plan] + [("backward", *one) for one in reversed(plan)]
    first_nan = -1
    for number, (direction, layer, operation) in enumerate(steps):
        is_nan = first_nan >= 0 or (layer, operation) == (2, "softmax")
        first_nan = number if is_nan and first_nan < 0 else first_nan
        largest = 40.0 * 3**layer * math.exp(chance.gauss(0, 0.5))
        numbers = {"max": largest, "min": -largest * 0.8, "mean": 0.01, "norm": largest * 20}
        shown: dict[str, Any] = dict.fromkeys(numbers, "NaN") if is_nan else numbers
        first_row = len(rows.get("call", []))
        calls.add(
            place=0,
            name=f"Functional.{operation}.{layer}.{direction}",
            module=f"blocks.{layer}.{'mlp' if operation in ('linear', 'gelu') else 'attention'}",
            direction=direction,
            operation=operation,
            location="model.py:41 in forward: scores = softmax(scores)",
            max_abs="NaN" if is_nan else largest,
            nan_count=128 if is_nan else 0,
            inf_count=0,
            first_row=first_row,
            row_count=2,
            **shown,
        )
        for slot in ("input.0", "output.0"):
            bad = is_nan and not (number == first_nan and slot == "input.0")
            rows.add(call=number, place=0, slot=slot, dtype="float16", shape="[4, 128, 256]")
            rows.add(**(shown if bad else numbers), nan_count=128 if bad else 0, inf_count=0)
    largest_row = rows["call"].index(first_nan)
    parameters = [f"blocks.{layer}.{name}.weight" for layer in range(layers) for name in ("mlp.up", "attention.query")]
    return {
        "version": 1,
        "kind": "run",
        "tensorprobe": "0.9",
        "title": "run: /data/run",
        "path": "/data/run",
        "places": ["step0/rank0"],
        "strings": texts.listed,
        "calls": dict(calls),
        "rows": dict(rows),
        "details": {},
        "problems": [],
        "run": {
            "nonfinite": {
                "headline": "NaN first arises in Functional.softmax.2.forward (step0/rank0): output.0 is NaN.",
                "call": first_nan,
                "fed_by": [largest_row],
                "others": [{"headline": "Inf comes from outside into Functional.linear.0.forward.", "call": 0}],
            },
            "gradients": [
                {
                    "parameter": name,
                    "norm": "NaN" if index > 3 else 10.0 ** -(index + 1),
                    "call": len(steps) - 1 - index,
                }
                for index, name in enumerate(parameters)
            ],
            "overflow": [{"row": largest_row, "max_abs": 60000.0, "dtype": "float16", "share": 0.916}],
            "lost_digits": [{"call": number, "digits": 0.2 + number / 8} for number in range(0, len(steps), 4)],
            "statements": [{"label": "NaN", "text": "36 calls hold NaN", "mark": "bad"}],
            "settings": {"framework": "pytorch", "level": "L1", "task": "statistics"},
        },
    }
