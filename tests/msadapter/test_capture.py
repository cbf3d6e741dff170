"""What is recorded of a program for MSAdapter: which calls, under which names, with which values."""

from __future__ import annotations

import importlib

import mindspore
import numpy as np
import pytest

from tensorprobe import UsageError, capture
from tensorprobe.mindspore import PrecisionDebugger
from tests.msadapter.program import DUMP, F, Net, dump_of, loss_of, make_net, nn, record_step, torch, train_step


def test_layers_functions_and_methods_have_the_names_of_torch() -> None:
    records = record_step("L1").records
    assert [name for name in records if name.endswith("forward")] == [
        "Functional.conv2d.0.forward",
        "Tensor.__add__.0.forward",  # the normalisation counts its batches
        "Functional.batch_norm.0.forward",
        "Functional.relu.0.forward",
        "Tensor.__mul__.0.forward",
        "Tensor.reshape.0.forward",
        "Functional.linear.0.forward",
        "Torch.add.0.forward",
        "Tensor.square.0.forward",
        "Tensor.sum.0.forward",
    ]


def test_every_call_has_its_backward() -> None:
    records = record_step("L1").records
    forward = {name for name in records if name.endswith("forward")} - {"Tensor.__add__.0.forward"}
    assert {name.replace("forward", "backward") for name in forward} <= set(records)


def test_modules_have_their_class_path_keywords_parameters_and_buffers() -> None:
    records = record_step("L0").records
    root = records["Module.Net.forward.0"]
    assert root["input_kwargs"]["scale"]["value"] == 2.0
    assert set(records["Module.fc.Linear.forward.0"]["parameters"]) == {"weight"}
    norm = records["Module.norm.BatchNorm2d.forward.0"]
    assert set(norm["parameters"]) == {"weight", "bias"}
    assert set(norm["buffers"]) == {"running_mean", "running_var", "num_batches_tracked"}
    assert set(records["Module.conv1.Conv2d.parameters_grad"]) == {"weight", "bias"}


def test_the_gradients_are_those_that_the_program_gets() -> None:
    dump = record_step("mix", "tensor")
    model, x = make_net()
    train_step(model, x)
    for path, kind in (("conv1", "Conv2d"), ("norm", "BatchNorm2d"), ("fc", "Linear")):
        record = dump.records[f"Module.{path}.{kind}.parameters_grad"]
        for name, parameter in getattr(model, path)._parameters.items():
            if parameter is not None:
                np.testing.assert_array_equal(dump.array(record[name][0]), parameter.grad.asnumpy())


def test_value_and_grad_gives_the_gradients_of_the_weights_it_was_asked_for() -> None:
    model, x = make_net()
    debugger = PrecisionDebugger(dump_path=DUMP, level="mix", task="tensor")
    debugger.start(model)
    _, gradients = mindspore.value_and_grad(lambda x: loss_of(model, x), None, weights=[model.fc.weight])(x)
    debugger.stop()
    debugger.step()
    dump = dump_of()
    assert "Module.conv1.Conv2d.parameters_grad" not in dump.records
    weight = dump.records["Module.fc.Linear.parameters_grad"]["weight"][0]
    np.testing.assert_array_equal(dump.array(weight), gradients[0].asnumpy())


def test_several_models_are_numbered() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L0")
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    debugger.start(models)
    for model in models:
        model(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    assert {"Module.0.Linear.forward.0", "Module.1.Linear.forward.0"} <= set(dump_of().records)


def test_functions_that_a_program_imported_by_name_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "silu", F.silu)  # as after: from torch.nn.functional import silu
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    debugger.start()
    globals()["silu"](torch.ones(2))
    debugger.stop()
    debugger.step()
    assert "Functional.silu.0.forward" in dump_of().records


def test_npu_functions_are_recorded() -> None:
    torch_npu = pytest.importorskip("torch_npu")
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    debugger.start()
    torch_npu.fast_gelu(torch.ones(2, 2))
    debugger.stop()
    debugger.step()
    assert "NPU.fast_gelu.0.forward" in dump_of().records


def test_a_compiled_function_is_one_record() -> None:
    @mindspore.jit
    def double(x):
        return x * 2 + 1

    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    debugger.start()
    double(mindspore.Tensor([1.0, 2.0]))
    debugger.stop()
    debugger.step()
    assert "Jit.double.0.forward" in dump_of().records


def test_questions_about_a_tensor_are_no_records() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L1")
    x = torch.ones(2, 3)
    debugger.start()
    x.size(), x.dim(), x.numel(), x.is_contiguous(), x.tolist(), repr(x), torch.is_tensor(x), torch.numel(x)
    debugger.stop()
    debugger.step()
    assert not dump_of().records


def test_a_cell_is_refused_in_words() -> None:
    debugger = PrecisionDebugger(dump_path=DUMP, level="L0")
    with pytest.raises(UsageError) as error:
        debugger.start(mindspore.nn.Dense(2, 2))
    assert str(error.value) == (
        "start(model) takes a torch.nn.Module, or a list or tuple of them, not Dense: "
        "with MSAdapter the modules of torch are recorded, not cells"
    )


def test_the_face_for_pytorch_says_which_face_to_use() -> None:
    with pytest.raises(UsageError, match=r"use tensorprobe\.mindspore"):
        importlib.import_module("tensorprobe.pytorch")


def test_the_context_manager_knows_the_model() -> None:
    model, x = make_net()
    with capture(model, DUMP):
        train_step(model, x)
    dump = dump_of()
    assert dump.document["framework"] == "mindtorch"
    assert "Module.conv1.Conv2d.backward.0" in dump.records


def test_the_version_of_the_adapter_is_in_the_circumstances() -> None:
    run = record_step("L0").read("run.json")
    assert run["versions"]["msadapter"] == "0.5.0b1"


def test_a_class_of_the_users_gives_the_name() -> None:
    class Small(Net):
        pass

    debugger = PrecisionDebugger(dump_path=DUMP, level="L0")
    model = Small()
    debugger.start(model)
    model(torch.ones(2, 1, 4, 4))
    debugger.stop()
    debugger.step()
    assert "Module.Small.forward.0" in dump_of().records
