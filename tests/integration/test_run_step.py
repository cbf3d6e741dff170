"""What a step is in programs of PyTorch that do not know of us: recorded as by `tensorprobe run`, without its start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.launched import names_of, run_plain, run_watched
from tests.integration.script import messages
from tests.integration.test_run import PREAMBLE, STEPS, write

ACCUMULATION = (
    PREAMBLE
    + """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(3):
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(torch.randn(3, 4)), target)
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(loss.item().hex(), scaler.get_scale())
"""
)


def test_several_backward_passes_before_one_update_are_one_step_and_so_is_an_update_that_the_scaler_skips(
    tmp_path: Path,
) -> None:
    script = write(tmp_path, ACCUMULATION)
    plain = run_plain(tmp_path, script).stdout
    assert run_watched(tmp_path, script, output="dump").stdout == plain
    names = names_of(tmp_path / "dump")
    assert list(names) == STEPS
    for found in names.values():
        assert "Module.Sequential.backward.1" in found and "Module.Sequential.forward.2" not in found


TWO_OPTIMIZERS = (
    PREAMBLE
    + """
first = torch.optim.SGD(model[0].parameters(), 0.1)
second = torch.optim.SGD(model[2].parameters(), 0.1)
first.step()  # before any model was called: no step
for step in range(3):
    criterion(model(torch.randn(3, 4)), target).backward()
    first.step()
    second.step()
"""
)
BY_HAND = (
    PREAMBLE
    + """
for step in range(3):
    criterion(model(torch.randn(3, 4)), target).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
"""
)
CLOSURE = (
    PREAMBLE
    + """
optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1, max_eval=1)
batch = torch.randn(3, 4)
def compute():
    optimizer.zero_grad()
    loss = criterion(model(batch), target)
    loss.backward()
    return loss
for step in range(3):
    print(optimizer.step(compute).item().hex())
"""
)
INFERENCE = (
    PREAMBLE
    + """
with torch.inference_mode():
    for _ in range(3):
        print(model(torch.randn(3, 4)).sum().item().hex())
"""
)


@pytest.mark.parametrize(
    ("program", "options", "steps"),
    [
        (TWO_OPTIMIZERS, {"step": "all"}, STEPS),
        (TWO_OPTIMIZERS, {"step": "2"}, STEPS[2:]),
        (CLOSURE, {"step": "all"}, STEPS),
        (BY_HAND, {"step": "all"}, STEPS),
        (BY_HAND, {"step": "1"}, STEPS[1:2]),
        (INFERENCE, {}, STEPS[:1]),
        (INFERENCE, {"step_at": "call"}, STEPS),
        (INFERENCE, {"step_at": "call", "step": "0,2"}, [STEPS[0], STEPS[2]]),
    ],
    ids=[
        "two optimizers",
        "two, the last",
        "closure",
        "by hand",
        "by hand, one",
        "inference",
        "each call",
        "some calls",
    ],
)
def test_a_step_is_an_update_or_a_backward_pass_or_the_whole_program(
    tmp_path: Path, program: str, options: dict[str, str], steps: list[str]
) -> None:
    script = write(tmp_path, program)
    plain = run_plain(tmp_path, script).stdout
    assert run_watched(tmp_path, script, output="dump", **options).stdout == plain
    names = names_of(tmp_path / "dump")
    assert list(names) == steps
    calls = 3 if steps == STEPS[:1] else 1
    for found in names.values():
        assert sum(name.startswith("Module.Sequential.forward") for name in found) == calls


def test_several_models_have_names_of_their_own_and_their_gradients_are_recorded(tmp_path: Path) -> None:
    program = PREAMBLE + (
        "critic = nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], 0.1)\n"
        "critic(model(torch.randn(3, 4))).sum().backward()\noptimizer.step()\n"
    )
    run_watched(tmp_path, write(tmp_path, program), output="dump")
    names = names_of(tmp_path / "dump")["step0/rank"]
    wanted = {"Module.Sequential.forward.0", "Module.Linear.Linear.forward.0"}
    assert wanted | {"Module.Linear.Linear.parameters_grad", "Module.0.Linear.parameters_grad"} <= set(names)


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        (
            PREAMBLE,
            {},
            "nothing was recorded: the program has called no model (torch.nn.Module, mindspore.nn.Cell) outside of "
            "compiled functions",
        ),
        (
            BY_HAND,
            {"step": "7-9"},
            "nothing was recorded: the program has made 3 steps, and none of those that were asked for; "
            "--step or TENSORPROBE_STEP chooses others",
        ),
        (
            BY_HAND.replace("for step", "open('dump', 'w').close()\nfor step", 1),
            {},
            "nothing was recorded: {output} could not be written: make it writable, free space, or choose another",
        ),
    ],
    ids=["no model", "no step", "no folder"],
)
def test_a_program_of_which_nothing_was_recorded_is_told_why(
    tmp_path: Path, program: str, options: dict[str, str], message: str
) -> None:
    ended = run_watched(tmp_path, write(tmp_path, program + "\nsys = 1\n"), output="dump", **options)
    assert messages(ended)[-1] == message.format(output=tmp_path / "dump") and not (tmp_path / "dump").is_dir()
    assert not any("Next:" in text for text in messages(ended))


LOOP = """
import torch
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

torch.manual_seed(0)
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=16)
model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 1, 4)
model.train()
for step in range(4):
    output = model(input_ids=torch.arange(4)[None] + step, labels=torch.tensor([step % 2]))
    output.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(output.loss.item().hex())
"""


@pytest.mark.long
def test_a_loop_around_a_model_of_transformers_is_recorded_and_its_loss_is_the_same(
    tmp_path: Path,
) -> None:
    script = write(tmp_path, LOOP)
    plain = run_plain(tmp_path, script).stdout
    recorded = run_watched(tmp_path, script, output="dump")
    assert recorded.stdout == plain and list(names_of(tmp_path / "dump")) == STEPS
    assert "Module.BertForSequenceClassification.backward.0" in names_of(tmp_path / "dump")["step2/rank"]


GENERATION = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
options = dict(max_new_tokens=3, min_new_tokens=3, do_sample=True, pad_token_id=0)
print(model.generate(torch.tensor([[1, 2]]), attention_mask=torch.ones(1, 2), **options))
"""


@pytest.mark.long
def test_each_token_that_transformers_generates_is_one_call_of_the_model(tmp_path: Path) -> None:
    script = write(tmp_path, GENERATION)
    plain = run_plain(tmp_path, script).stdout
    for options, calls in (({}, [3]), ({"step_at": "call", "step": "all"}, [1, 1, 1])):
        recorded = run_watched(tmp_path, script, level="L0", output="dump", **options)
        assert recorded.stdout == plain and len(messages(recorded)) == 1, recorded.stderr
        names = names_of(tmp_path / "dump").values()
        assert [sum(name.startswith("Module.GPT2LMHeadModel.forward") for name in found) for found in names] == calls
        shutil.rmtree(tmp_path / "dump")
