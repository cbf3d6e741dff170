"""The four modes of api_dump, on the names of calls alone."""

from __future__ import annotations

from tensorprobe.capture.api_dump.selector import ApiDumpSelector
from tensorprobe.config.api_dump import read_options

STEP = ["NN_Conv2d_{}", "NN_ReLU_{}", "NN_Dense_{}", "Tensor___matmul___{}"]


def make(mode: str, scope: list[str], *, keeps_backward: bool = True) -> ApiDumpSelector:
    return ApiDumpSelector(read_options(mode, scope, "all", True), keeps_backward=keeps_backward)


def run(selector: ApiDumpSelector, step: int = 0) -> list[str]:
    """The records of one step of training: all calls forward, then backward in the reverse order."""
    kept, waiting = [], []
    for name in (text.format(step) for text in STEP):
        keeps_forward, keeps_backward = selector.choose(name, name.rpartition("_")[0].replace("_", ".", 1))
        kept += [f"{name}_forward"] * keeps_forward
        waiting += [name] * keeps_backward
        selector.end(f"{name}_forward")
    for name in reversed(waiting):
        kept += [f"{name}_backward"] * selector.begin(f"{name}_backward")
        selector.end(f"{name}_backward")
    return kept


def test_all_is_everything_and_without_backward_everything_forward() -> None:
    assert len(run(make("all", []))) == 8
    assert run(make("all", [], keeps_backward=False)) == [f"{name.format(0)}_forward" for name in STEP]


def test_a_list_takes_the_direction_that_a_name_has_and_both_where_it_has_none() -> None:
    assert run(make("list", ["NN_ReLU_0_forward", "NN_Dense_0"])) == [
        "NN_ReLU_0_forward",
        "NN_Dense_0_forward",
        "NN_Dense_0_backward",
    ]
    assert run(make("list", ["NN_Dense_0_backward"])) == ["NN_Dense_0_backward"]
    assert run(make("list", ["NN_Dense_0_backward"], keeps_backward=False)) == []


def test_a_range_without_directions_is_one_of_calls_with_their_backward() -> None:
    assert run(make("range", ["NN_ReLU_0", "NN_Dense_0"])) == [
        "NN_ReLU_0_forward",
        "NN_Dense_0_forward",
        "NN_Dense_0_backward",
        "NN_ReLU_0_backward",
    ]


def test_a_range_with_directions_follows_the_order_of_execution() -> None:
    assert run(make("range", ["NN_ReLU_0_forward", "NN_Dense_0_forward"])) == [
        "NN_ReLU_0_forward",
        "NN_Dense_0_forward",
    ]
    assert run(make("range", ["NN_Dense_0_forward", "NN_Dense_0_backward"])) == [
        "NN_Dense_0_forward",
        "Tensor___matmul___0_forward",
        "Tensor___matmul___0_backward",
        "NN_Dense_0_backward",
    ]


def test_a_range_ends_where_its_last_call_begins_and_not_only_when_it_is_known_to_be_complete() -> None:
    selector = make("range", ["NN_Dense_0_backward", "NN_LSTM_0_backward"])
    begun = [selector.begin(f"{name}_backward") for name in ("NN_Dense_0", "NN_LSTM_0", "NN_ReLU_0", "NN_Conv2d_0")]
    selector.end("NN_LSTM_0_backward")
    assert begun == [True, True, False, False]


def test_a_range_whose_last_call_began_before_its_first_ends_with_it() -> None:
    selector = make("range", ["NN_ReLU_0_backward", "NN_LSTM_0_backward"])
    begun = [selector.begin(f"{name}_backward") for name in ("NN_LSTM_0", "NN_ReLU_0", "NN_Conv2d_0")]
    selector.end("NN_LSTM_0_backward")
    assert begun == [False, True, True] and selector.choose("NN_Dense_1", "NN.Dense")[0] is False


def test_a_range_runs_from_a_backward_to_a_forward_of_the_next_step() -> None:
    selector = make("range", ["NN_ReLU_0_backward", "NN_ReLU_1_forward"])
    assert run(selector, 0) == ["NN_ReLU_0_backward", "NN_Conv2d_0_backward"]
    assert run(selector, 1) == ["NN_Conv2d_1_forward", "NN_ReLU_1_forward"]
    assert run(selector, 2) == []


def test_a_range_of_a_later_step_is_found_then() -> None:
    selector = make("range", ["NN_ReLU_1", "NN_ReLU_1"])
    assert run(selector, 0) == []
    assert run(selector, 1) == ["NN_ReLU_1_forward", "NN_ReLU_1_backward"]


def test_words_find_layers_and_functions_whatever_their_spelling() -> None:
    selector = make("api_list", ["layernorm", "ReLU"])
    wanted = {"NN.LayerNorm", "Functional.layer_norm", "NN.ReLU", "Torch.relu_", "Functional.leaky_relu"}
    others = {"NN.Linear", "Tensor.norm", "Functional.elu"}
    assert {stem for stem in wanted | others if selector.choose("x", stem)[0]} == wanted
    assert make("api_list", ["nn_layer"]).choose("x", "NN.LayerNorm") == (True, True)
    assert make("api_list", ["lrelu"]).choose("x", "Functional.relu") == (False, False)


def test_the_same_selection_goes_on_and_another_begins_anew() -> None:
    selector = make("range", ["NN_ReLU_0", "NN_Dense_0"])
    assert selector.continues(read_options("range", ["NN_ReLU_0", "NN_Dense_0"], "statistics", False))
    assert not selector.continues(read_options("range", ["NN_ReLU_0", "NN_Dense_1"], "all", True))
    selector.use(read_options("range", ["NN_ReLU_0", "NN_Dense_0"], "statistics", False))
    assert not selector.storing("NN_ReLU_0_forward")
