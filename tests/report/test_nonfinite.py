"""Where NaN and Inf come from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tensorprobe.report.nonfinite import NonFinite, describe_counts
from tensorprobe.report.rank import build_rank_report
from tensorprobe.store.reader import open_dump
from tensorprobe.store.slot import TensorSlot, iter_slots
from tests.report.dump_files import (
    HEADER,
    backward,
    forward,
    model_parents,
    model_records,
    tensor,
    write_lines,
    write_rank,
)

NAN = tensor(1.0, nan_count=2)
MINUS_INF = {**tensor(1.0, inf_count=4), "Min": -math.inf}


def find(folder: Path, records: dict[str, Any], parents: dict[str, str | None] | None = None) -> NonFinite:
    return build_rank_report(next(open_dump(write_rank(folder, records, parents)).ranks())).non_finite


def origins(found: NonFinite) -> dict[str, dict[str, str]]:
    return {one.call.name: dict(one.origins) for one in found.calls}


def test_the_call_where_it_arises_is_told_from_those_that_carry_it_on(tmp_path: Path) -> None:
    found = find(tmp_path, model_records(), model_parents())
    assert [one.call.name for one in found.places("NaN")] == ["Torch.log.0.forward"]
    assert len(found.of("NaN")) == 8
    assert found.of("Inf") == []


def test_at_l0_the_innermost_module_is_where_it_arises(tmp_path: Path) -> None:
    records = {
        "Module.a.fc.Linear.forward.0": forward(tensor(), output=tensor()),
        "Module.a.act.Exp.forward.0": forward(tensor(), output=NAN),
        "Module.a.Block.forward.0": forward(tensor(), output=NAN),
    }
    parents: dict[str, str | None] = dict.fromkeys(records, "Module.a.Block.forward.0")
    parents["Module.a.Block.forward.0"] = None
    assert [one.call.name for one in find(tmp_path, records, parents).places("NaN")] == ["Module.a.act.Exp.forward.0"]


def test_nan_in_the_data_comes_in_from_outside(tmp_path: Path) -> None:
    records = {"Torch.add.0.forward": forward(NAN, output=NAN), "Torch.add.1.forward": forward(NAN, output=NAN)}
    assert origins(find(tmp_path, records)) == {
        "Torch.add.0.forward": {"NaN": "enters"},
        "Torch.add.1.forward": {"NaN": "carried"},
    }


def test_a_backward_that_gets_it_from_its_forward_only_carries_it(tmp_path: Path) -> None:
    records = {
        "Torch.log.0.forward": forward(tensor(), output=NAN),
        "Torch.log.0.backward": backward(tensor(), output=NAN),
        "Torch.sqrt.0.forward": forward(tensor()),
        "Torch.sqrt.0.backward": backward(tensor(), output=MINUS_INF),
    }
    assert origins(find(tmp_path, records)) == {
        "Torch.log.0.forward": {"NaN": "arises"},
        "Torch.log.0.backward": {"NaN": "carried"},
        "Torch.sqrt.0.backward": {"Inf": "arises"},
    }


def test_a_parameter_whose_gradient_is_the_first_nan(tmp_path: Path) -> None:
    assert origins(find(tmp_path, {"Module.fc.Linear.parameters_grad": {"weight": [NAN]}})) == {
        "Module.fc.Linear.parameters_grad": {"NaN": "arises"}
    }


def test_undefined_memory_does_not_count(tmp_path: Path) -> None:
    records = {
        "Torch.empty.0.forward": forward(output=NAN, note="undefined memory"),
        "Tensor.zero_.0.forward": forward({**NAN, "source": "Torch.empty.0.forward"}, output=tensor(0.0)),
    }
    assert find(tmp_path, records).calls == ()


def test_a_tensor_that_says_that_it_is_undefined_does_not_count_whoever_made_it(tmp_path: Path) -> None:
    undefined = {**NAN, "note": "undefined memory"}
    records = {
        "Tensor.view.0.forward": forward(undefined, output=undefined),
        "Ops.fsdp.all_gather_copy_in.0.forward": {**forward(tensor()), "output": [tensor(), undefined]},
        "Tensor.view.0.backward": backward(tensor(), output={**NAN, "note": "quantized; undefined memory"}),
    }
    assert find(tmp_path, records).calls == ()


def test_what_was_written_into_undefined_memory_unseen_counts(tmp_path: Path) -> None:
    records = {
        "Torch.empty.0.forward": forward(output=tensor(5.0), note="undefined memory"),
        "Torch.exp.0.forward": forward({**NAN, "source": "Torch.empty.0.forward"}, output=NAN),
    }
    assert origins(find(tmp_path, records)) == {"Torch.exp.0.forward": {"NaN": "enters"}}


def test_saved_values_count(tmp_path: Path) -> None:
    folder = write_rank(tmp_path, {})
    write_lines(folder / "debug.json", HEADER, {"x.0.debug": NAN}, "}}")
    found = build_rank_report(next(open_dump(folder).ranks())).non_finite
    assert origins(found) == {"x.0.debug": {"NaN": "arises"}}


def test_counts_in_words() -> None:
    def words(leaf: dict[str, Any]) -> str:
        slot = next(iter_slots(leaf, "x"))
        assert isinstance(slot, TensorSlot)
        return describe_counts(slot)

    assert words(NAN) == "NaN 2"
    assert words(MINUS_INF) == "-Inf 4"
    assert words({**tensor(1.0, inf_count=1_000, nan_count=1), "Max": math.inf}) == "NaN 1 · +Inf 1,000"
    assert words({**tensor(1.0, inf_count=2), "Max": math.inf, "Min": -math.inf}) == "Inf 2"
    assert words(tensor(math.nan)) == "NaN"
    assert words({**tensor(1.0), "Norm": math.inf}) == ""


def test_what_a_kernel_of_mindspore_does_not_fill_is_no_nan(tmp_path: Path) -> None:
    batch_norm = {**forward(tensor()), "output": [tensor(), NAN, NAN]}
    assert find(tmp_path / "kept", {"Primitive.bn_train.BatchNorm.0.forward": batch_norm}).calls == ()
    wrong = {**forward(tensor()), "output": [NAN, NAN, NAN]}
    assert len(find(tmp_path / "wrong", {"Primitive.bn_train.BatchNorm.0.forward": wrong}).calls) == 1
