"""The graph around the difference, by small dumps: what is drawn, what is joined, and a hostile flow of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tensorprobe
from tensorprobe.report.page.comparison import build_comparison_page
from tests.report.dump_files import forward, tensor, write_rank

LINEAR, GELU, MUL, ADD = (
    f"{name}.0.forward" for name in ("Functional.linear", "Functional.gelu", "Torch.mul", "Torch.add")
)


def build_page(tmp_path: Path, good: dict[str, Any], bad: dict[str, Any], frame: str = "") -> dict[str, Any]:
    for side, records in (("good", good), ("bad", bad)):
        stacks = {"0": [list(records), [frame]]} if frame else None
        write_rank(tmp_path / side / "step0" / "rank", records, stacks=stacks)
    return build_comparison_page(tensorprobe.compare(tmp_path / "good", tmp_path / "bad", by="growth"))


def chain(result: float = 2.0, **sources: str) -> dict[str, Any]:
    """linear -> gelu -> mul -> add; `sources` says otherwise where an input comes from."""
    return {
        LINEAR: forward(tensor(1.0, source=sources.get("linear")), output=tensor(1.5)),
        GELU: forward(tensor(1.5, source=sources.get("gelu", LINEAR)), output=tensor(result)),
        MUL: forward(tensor(result, source=GELU), output=tensor(2 * result)),
        ADD: forward(tensor(2 * result, source=MUL), output=tensor(3 * result)),
    }


def test_the_call_what_feeds_it_and_what_takes_it_up_are_drawn_on_both_sides(tmp_path: Path) -> None:
    graph = build_page(tmp_path, chain(), chain(2.5))["graph"]
    calls = {side: [] for side in ("reference", "candidate")}
    for node in graph["nodes"]:
        if node["kind"] == "call":
            calls[node["side"]].append((node["name"], node["column"], node["state"]))
    assert calls["reference"] == calls["candidate"]
    assert calls["reference"] == [(LINEAR, 0, "equal"), (GELU, 2, "source"), (MUL, 4, "different")]
    values = [(node["name"], node["state"], node["shape"]) for node in graph["nodes"] if node["kind"] == "value"]
    assert values[:2] == [(f"{LINEAR}.output.0", "equal", "2 × 3"), (f"{GELU}.output.0", "different", "2 × 3")]
    assert [join["state"] for join in graph["joins"]] == ["equal", "different"]


def test_a_flow_that_runs_in_a_circle_ends(tmp_path: Path) -> None:
    circle = {"linear": MUL, "gelu": LINEAR}
    graph = build_page(tmp_path, chain(**circle), chain(2.5, **circle))["graph"]
    assert graph["nodes"] and max(node["column"] for node in graph["nodes"]) < 100
    own = {"linear": LINEAR, "gelu": GELU}
    assert build_page(tmp_path / "self", chain(**own), chain(2.5, **own))["graph"]["nodes"]


def test_a_call_with_hundreds_of_users_is_drawn_with_a_few(tmp_path: Path) -> None:
    def fan(gelu: float) -> dict[str, Any]:
        users = {
            f"Torch.sub.{number}.forward": forward(tensor(gelu, source=GELU), output=tensor(gelu))
            for number in range(300)
        }
        return {**chain(gelu), **users}

    graph = build_page(tmp_path, fan(2.0), fan(2.5))["graph"]
    assert len([node for node in graph["nodes"] if node["kind"] == "call"]) < 20


def test_a_hostile_dump_brings_no_file_of_this_machine_into_the_page(tmp_path: Path) -> None:
    with Path("/etc/passwd").open() as file:
        lines = file.read().splitlines()
    for number, code in enumerate(("y = gelu(x)", lines[0], lines[0][:5], "")):
        page = build_page(
            tmp_path / str(number), chain(), chain(2.5), f"File /etc/passwd, line 1, in forward, \n {code}"
        )
        assert all(side["source"] is None for side in page["verdict"]["sides"].values())
        text = json.dumps(page)
        assert not any(json.dumps(line)[1:-1] in text for line in lines[1:] if line)
        assert lines[0] in text or code != lines[0]  # the recorded line itself is shown
