"""Comparisons put together by hand: what the reports are given, with no dump and no engine behind it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.result import CallResult, Comparison, Coverage, RankResult, ValuePair, Verdict
from tensorprobe.run.call import Call
from tensorprobe.store.slot import PlainSlot, Slot, TensorSlot

HOSTILE_NAMES = [
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x","y")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "../../x",
    "[bold red]markup[/bold red]",
    "[/]",
    "\x1b[31mred\x07\x00",
    "a\nb",
    "\ud800 half a pair",
    "\u202egnirts",
    "\uffff\ufffe",
    "_x0041_",
    "x" * 10_000,
    "http://example.com",
]
FRAME = "File /x/model.py, line 18, in forward, \n y = F.gelu(x)"


def tensor(slot: str = "output.0", value: float = 1.0, **more: Any) -> TensorSlot:
    """A tensor whose statistics are all `value`."""
    fields: dict[str, Any] = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": (2, 3),
        "max": value,
        "min": value,
        "mean": value,
        "norm": value,
        "nan_count": 0,
        "inf_count": 0,
        "requires_grad": False,
        "checksum": None,
        "data_name": None,
        "source": None,
        "reason": None,
        "note": None,
        "is_input": slot.startswith("input"),
    }
    return TensorSlot(slot, **{**fields, **more})


def plain(slot: str, value: Any) -> PlainSlot:
    return PlainSlot(slot, type(value).__name__, value, is_input=True)


def call(name: str = "Functional.gelu.0.forward", *slots: Slot, **more: Any) -> Call:
    """A forward call of an API."""
    prefix, _, op = name.partition(".")
    fields: dict[str, Any] = {"position": 0, "kind": "api", "prefix": prefix, "op": op.partition(".")[0], "index": 0}
    fields |= {"direction": "forward", "path": "", "module_path": "blocks.0", "parent": None}
    return Call(name=name, slots=slots, **{**fields, **more})


def pair(reference: Slot | None, candidate: Slot | None, status: str = "equal", **more: Any) -> ValuePair:
    """Two slots; two tensors come with a measurement."""
    measurement = more.pop("measurement", None)
    if measurement is None and isinstance(reference or candidate, TensorSlot):
        measurement = Measurement("tensor", is_equal=status == "equal", cosine=1.0 if status == "equal" else 0.5)
    return ValuePair(reference, candidate, status, measurement, **more)  # type: ignore[arg-type]


def call_result(name: str = "Functional.gelu.0.forward", role: str = "clean", **more: Any) -> CallResult:
    """A call with an input that agrees; its output differs unless the call is clean."""
    module_path = more.pop("module_path", "blocks.0")
    input_slot = tensor("input.0", 1.0)
    reference, candidate = tensor("output.0", 2.0), tensor("output.0", 2.0 if role == "clean" else 2.5)
    values = more.pop("values", None) or (
        pair(input_slot, input_slot, "equal", error=0.0, tolerance=1e-6),
        pair(reference, candidate, "equal")
        if role == "clean"
        else pair(reference, candidate, "different", error=0.25, tolerance=1.2e-6),
    )
    made = call(name, input_slot, reference, module_path=module_path)
    other = call(more.pop("candidate_name", name), input_slot, candidate, module_path=module_path)
    fields: dict[str, Any] = {"rule": "same name", "values": values, "role": role}
    return CallResult((made,), (other,), **{**fields, **more})


def coverage(calls: int = 10, paired: int = 10, **more: Any) -> Coverage:
    return Coverage(calls, calls, paired, paired, compared_values=2 * paired, values=2 * paired, **more)


def rank_result(*calls: CallResult, step: int = 0, rank: str = "rank", **more: Any) -> RankResult:
    """One step of one process; its first call that is a source gives its verdict."""
    calls = calls or (call_result(),)
    named = [one for one in calls if one.role in ("source", "entered", "drift")]
    name = f"step{step}/{rank}"
    kind: Any = named[0].role if named else "agree"
    headline = f"The runs part at {named[0].name}." if named else "The runs agree."
    fields: dict[str, Any] = {
        "candidate_name": name,
        "only_reference": (),
        "only_candidate": (),
        "verdict": Verdict(kind, headline, step=step, rank_name=name, call=named[0] if named else None),
        "others": tuple(named[1:]),
        "coverage": coverage(),
        "bases": Counter(value.measurement.basis for one in calls for value in one.values if value.measurement),
    }
    return RankResult(step=step, reference_name=name, calls=calls, **{**fields, **more})


def comparison(*ranks: RankResult, **more: Any) -> Comparison:
    """The verdict is that of the first rank that has one other than "agree"."""
    ranks = ranks or (rank_result(),)
    verdict = next((rank.verdict for rank in ranks if rank.verdict.kind != "agree"), ranks[0].verdict)
    return Comparison(**{"reference": "good", "candidate": "bad", "ranks": ranks, "verdict": verdict, **more})


def gelu_fault() -> Comparison:
    """A model of which one call went wrong; the whole of what can be said of it."""
    evidence = (
        "its inputs agree: input.0 is equal",
        "its output does not: output.0 differs by 0.25 (tolerance 1.2e-06), worst at [1, 2]: 2 against 2.5",
        "reference: /x/model.py:18 in forward: y = F.gelu(x)",
    )
    source = call_result("Functional.gelu.0.forward", "source", reference_location=FRAME, candidate_location=FRAME)
    other = call_result(
        "Functional.dropout.3.forward",
        "entered",
        because="called with p=0.1 where the reference had 0.0",
        candidate_location=FRAME,
        values=(pair(plain("kwargs.p", 0.0), plain("kwargs.p", 0.1), "different", reason="0.0 against 0.1"),),
    )
    rank = rank_result(
        call_result("Functional.linear.0.forward"),
        source,
        call_result("Functional.linear.1.forward", "propagated"),
        other,
        coverage=coverage(10, 9, unseen_candidate={"compiled region": 2}),
        only_reference=(Unpaired(call("Tensor.add.7.forward"), call("Tensor.add.6.forward"), "other shape"),),
        only_candidate=(Unpaired(call("Tensor.mul.9.forward", module_path=None), None, ""),),
        circumstances=(("settings.threads", 2, 1), ("versions.torch", "2.12.0", "2.13.0")),
        problems=("candidate: its last line was cut off",),
        verdict=Verdict("source", "The runs part at Functional.gelu.0.forward in blocks.0.", evidence, 0, "step0/rank",
                        source),
    )  # fmt: skip
    return comparison(rank)


def hostile(name: str) -> Comparison:
    """A comparison in which every text is that name."""
    slots = (plain(name, name), plain(name, name + "!"))
    made = call_result(
        f"{name}",
        "source",
        module_path=name,
        because=name,
        rule=name,
        reference_location=name,
        candidate_location=name,
        values=(
            pair(tensor(name, checksum=name, dtype=name), tensor(name), "different", reason=name, error=1.0),
            pair(*slots, "different", reason=name),
        ),
    )
    rank = rank_result(
        made,
        call_result(name, "entered", because=name),
        rank=name,
        only_reference=(Unpaired(call(name), call(name), name),),
        circumstances=((name, name, [name]),),
        problems=(name,),
        coverage=coverage(unseen_reference={name: 1}),
        verdict=Verdict("source", name, (name,), 0, f"step0/{name}", made),
    )
    return comparison(rank, reference=name, candidate=name, problems=(name,))
