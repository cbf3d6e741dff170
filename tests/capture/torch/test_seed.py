"""seed_all: what it fixes, that dropout lets everything through, and that restoring leaves nothing behind."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import dropout as dropout_imported_early
from torch.overrides import TorchFunctionMode

from tensorprobe.capture import seed as seed_module
from tensorprobe.capture.seed import SeedHandle
from tensorprobe.capture.torch.seed import seed_all
from tensorprobe.errors import UsageError
from tests.integration.script import run_script

DROPOUT_OFF = "seed_all: dropout is off from here on, because rm_dropout is True; rm_dropout=False leaves it on"
VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC")
DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
PATCHED = (*DROPOUTS, *(f"{name}_" for name in DROPOUTS), "native_dropout", "lstm", "gru", "rnn_tanh", "rnn_relu")


def read_state() -> dict[str, Any]:
    """All that seed_all may change, in a form that == compares."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "environment": {variable: os.environ.get(variable) for variable in VARIABLES},
        "random": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, cached),
        "torch": (torch.get_rng_state().tolist(), torch.initial_seed()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "_VF": dict(vars(torch._VF)),
        "torch names": {name: getattr(torch, name) for name in PATCHED},
        "functional names": dict(vars(F)),
    }


@pytest.fixture(autouse=True)
def _nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    before = read_state()
    yield
    monkeypatch.undo()
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert read_state() == before


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


class Watcher(TorchFunctionMode):
    """Notes the public names that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(torch.overrides.resolve_name(func))
        return func(*args, **(kwargs or {}))


class TestSeeding:
    def test_the_same_seed_gives_the_same_numbers(self) -> None:
        with seed_all(7):
            first = draw()
        with seed_all(7):
            assert draw() == first
        with seed_all(8):
            assert draw() != first

    def test_the_numbers_are_those_of_seeding_by_hand(self) -> None:
        with seed_all():
            assert draw() == (
                random.Random(1234).random(),
                float(np.random.RandomState(1234).rand()),
                float(torch.rand((), generator=torch.Generator().manual_seed(1234))),
            )

    def test_child_processes_get_the_hash_seed(self) -> None:
        command = [sys.executable, "-c", "print(hash('tensorprobe'))"]
        with seed_all(5):
            assert os.environ["PYTHONHASHSEED"] == "5"
            outputs = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
        assert len(outputs) == 1

    @pytest.mark.parametrize("seed", [0, 2**32 - 1])
    def test_the_ends_of_the_range_work(self, seed: int) -> None:
        with seed_all(seed):
            assert torch.initial_seed() == seed

    def test_plain_seeding_sets_no_flag(self) -> None:
        before = read_state()
        with seed_all(rm_dropout=False):
            now = read_state()
        changed = {key for key in before if before[key] != now[key]}
        assert changed == {"environment", "random", "numpy", "torch"}

    def test_cuda_is_not_initialised(self, tmp_path: Path) -> None:
        program = (
            "import torch; from tensorprobe.capture.torch.seed import seed_all\n"
            "seed_all(mode=True).restore(); assert not torch.cuda.is_initialized()"
        )
        run_script(tmp_path, program)


class FakeBackend:
    """Stands for torch.npu or torch.cuda with two devices."""

    def __init__(self, initialized: bool) -> None:
        self.initialized = initialized
        self.states: list[object] = ["state 0", "state 1"]

    def is_initialized(self) -> bool:
        return self.initialized

    def get_rng_state_all(self) -> list[object]:
        return list(self.states)

    def set_rng_state_all(self, states: list[object]) -> None:
        self.states = list(states)

    def manual_seed_all(self, seed: int) -> None:
        self.states = [seed, seed]


class TestDevices:
    def test_all_devices_are_seeded_and_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        npu = FakeBackend(initialized=True)
        monkeypatch.setattr(torch, "npu", npu, raising=False)
        with seed_all(9):
            assert npu.states == [9, 9]
            assert "HCCL_DETERMINISTIC" not in os.environ
        assert npu.states == ["state 0", "state 1"]

    def test_what_was_not_initialised_goes_back_to_the_seed_of_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        npu = FakeBackend(initialized=False)
        monkeypatch.setattr(torch, "npu", npu, raising=False)
        with seed_all(9):
            assert npu.states == [9, 9]
        assert npu.states == [torch.initial_seed()] * 2

    def test_mode_sets_hccl_on_an_npu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "npu", FakeBackend(initialized=True), raising=False)
        with seed_all(mode=True):
            assert os.environ["HCCL_DETERMINISTIC"] == "true"
        assert "HCCL_DETERMINISTIC" not in os.environ

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_real_cuda_generators(self) -> None:
        torch.cuda.init()
        before = torch.cuda.get_rng_state_all()
        with seed_all(3):
            first = torch.rand(4, device="cuda")
        assert all(torch.equal(old, new) for old, new in zip(before, torch.cuda.get_rng_state_all(), strict=True))
        with seed_all(3):
            assert torch.equal(torch.rand(4, device="cuda"), first)


class TestMode:
    def test_flags(self) -> None:
        with seed_all(mode=True):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert torch.backends.cudnn.deterministic
            assert not torch.backends.cudnn.benchmark
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"

    def test_a_workspace_that_is_set_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        with seed_all(mode=True):
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"

    def test_flags_that_were_set_come_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with seed_all(mode=True):
                assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert torch.backends.cudnn.benchmark
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        finally:
            torch.use_deterministic_algorithms(False)

    def test_a_change_that_fails_takes_back_those_before_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: object, **kwargs: object) -> None:
            raise RuntimeError("no")

        before = read_state()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "use_deterministic_algorithms", refuse)
            with pytest.raises(RuntimeError, match="no"):
                seed_all(mode=True)
        assert read_state() == before


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"seed": -1}, "seed must be from 0 to 4294967295"),
            ({"seed": 2**32}, "seed must be from 0 to 4294967295"),
            ({"seed": True}, "seed must be an int, not True of type bool"),
            ({"seed": 1.0}, "seed must be an int, not 1.0 of type float"),
            ({"seed": "1"}, "seed must be an int, not '1' of type str"),
            ({"seed": None}, "seed must be an int, not None"),
            ({"mode": 1}, "mode must be True or False, not 1"),
            ({"mode": "True"}, "mode must be True or False, not 'True'"),
            ({"rm_dropout": None}, "rm_dropout must be True or False, not None"),
        ],
    )
    def test_a_wrong_one_is_refused_and_changes_nothing(self, arguments: dict[str, Any], text: str) -> None:
        before = read_state()
        with pytest.raises(UsageError, match=text):
            seed_all(**arguments)
        assert read_state() == before


class TestRestore:
    def test_everything_comes_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONHASHSEED", "77")
        before = read_state()
        handle = seed_all(3, mode=True, rm_dropout=True)
        draw()
        handle.restore()
        assert read_state() == before

    def test_the_streams_go_on_where_they_were(self) -> None:
        with seed_all(1):
            draw()
            expected = draw()
        with seed_all(1):
            draw()
            with seed_all(2):
                draw()
            assert draw() == expected

    def test_a_second_restore_does_nothing(self) -> None:
        handle = seed_all()
        handle.restore()
        with seed_all(5):
            before = read_state()
            handle.restore()
            assert read_state() == before

    def test_an_exception_in_the_block_restores(self) -> None:
        with pytest.raises(KeyError), seed_all() as handle:
            assert isinstance(handle, SeedHandle)
            raise KeyError

    @pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
    def test_any_order_ends_where_it_began(self, order: tuple[int, ...]) -> None:
        before = read_state()
        handles = [seed_all(1, True, True), seed_all(2, rm_dropout=False), seed_all(3, True, True)]
        for index in order:
            handles[index].restore()
        assert read_state() == before

    def test_the_outer_restored_first_leaves_what_the_inner_set(self) -> None:
        outer, inner = seed_all(1, mode=True), seed_all(2, rm_dropout=True)
        outer.restore()
        assert torch.initial_seed() == 2
        assert os.environ["PYTHONHASHSEED"] == "2"
        assert is_inert()
        assert not torch.are_deterministic_algorithms_enabled()  # only the outer one had asked for it
        inner.restore()

    def test_the_inner_restored_first_leaves_what_the_outer_set(self) -> None:
        outer = seed_all(1, mode=True, rm_dropout=True)
        with seed_all(2, rm_dropout=True):
            pass
        assert torch.initial_seed() == 1
        assert is_inert()
        assert torch.are_deterministic_algorithms_enabled()
        outer.restore()

    def test_a_handle_that_nobody_kept_does_not_hold_up_the_others(self) -> None:
        before = read_state()
        outer = seed_all(1)
        for seed in range(2, 50):
            seed_all(seed)
        gc.collect()
        outer.restore()
        assert read_state() == before
        assert len(seed_module._handles) == 0


def is_inert() -> bool:
    ones = torch.ones(64)
    return torch.equal(F.dropout(ones, 0.5), ones)


class TestDropout:
    """Inert: the output is the input bit for bit, no random number is drawn, the gradient is the identity."""

    @pytest.fixture(autouse=True)
    def _seeded(self) -> Iterator[None]:
        with seed_all(rm_dropout=True):
            yield

    CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # noqa: RUF012  a table
        "early": lambda x: dropout_imported_early(x, 0.5),
        "F.dropout": lambda x: F.dropout(x, 0.5),
        "F.dropout1d": lambda x: F.dropout1d(x, 0.5),
        "F.dropout2d": lambda x: F.dropout2d(x[None], 0.5)[0],
        "F.dropout3d": lambda x: F.dropout3d(x[None, None], 0.5)[0, 0],
        "F.alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
        "F.feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
        "F.dropout p=1": lambda x: F.dropout(x, 1.0),
        "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
        "torch.dropout train=": lambda x: torch.dropout(x, p=0.5, train=True),
        "torch.feature_dropout": lambda x: torch.feature_dropout(x, 0.5, True),
        "torch.alpha_dropout": lambda x: torch.alpha_dropout(x, 0.5, True),
        "torch.feature_alpha_dropout": lambda x: torch.feature_alpha_dropout(x, 0.5, True),
        "torch.native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
        "torch._VF.dropout": lambda x: torch._VF.dropout(x, 0.5, True),
        "nn.Dropout": nn.Dropout(0.5),
        "nn.Dropout1d": nn.Dropout1d(0.5),
        "nn.AlphaDropout": nn.AlphaDropout(0.5),
        "nn.FeatureAlphaDropout": nn.FeatureAlphaDropout(0.5),
    }

    @pytest.mark.parametrize("name", CALLS)
    def test_lets_through(self, name: str) -> None:
        x = torch.randn(3, 4, 5, requires_grad=True)
        state = torch.get_rng_state()
        output = self.CALLS[name](x)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        assert torch.equal(output, x)
        assert torch.equal(gradient, torch.ones_like(x))
        assert torch.equal(torch.get_rng_state(), state)

    def test_infinities_and_nan_pass(self) -> None:
        x = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
        assert F.dropout(x, 0.5).view(torch.int32).tolist() == x.view(torch.int32).tolist()

    IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # noqa: RUF012  a table
        "F.dropout": lambda x: F.dropout(x, 0.5, inplace=True),
        "F.dropout1d": lambda x: F.dropout1d(x, 0.5, inplace=True),
        "F.alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True, inplace=True),
        "F.feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.5, training=True, inplace=True),
        "nn.Dropout": nn.Dropout(0.5, inplace=True),
        "torch.dropout_": lambda x: torch.dropout_(x, 0.5, True),
        "torch.feature_dropout_": lambda x: torch.feature_dropout_(x, 0.5, True),
        "torch.alpha_dropout_": lambda x: torch.alpha_dropout_(x, 0.5, True),
        "torch.feature_alpha_dropout_": lambda x: torch.feature_alpha_dropout_(x, 0.5, True),
    }

    @pytest.mark.parametrize("name", IN_PLACE)
    def test_in_place_returns_the_same_tensor(self, name: str) -> None:
        x = torch.randn(3, 4, 5)
        copy, state = x.clone(), torch.get_rng_state()
        assert self.IN_PLACE[name](x) is x
        assert torch.equal(x, copy)
        assert torch.equal(torch.get_rng_state(), state)

    def test_attention(self) -> None:
        query, key, value = torch.randn(3, 1, 2, 6, 4)
        expected = F.scaled_dot_product_attention(query, key, value)
        state = torch.get_rng_state()
        assert torch.equal(F.scaled_dot_product_attention(query, key, value, dropout_p=0.5), expected)
        assert torch.equal(F.scaled_dot_product_attention(query, key, value, None, 0.5), expected)
        assert torch.equal(torch.get_rng_state(), state)

    def test_torch_still_checks_the_probability(self) -> None:
        x = torch.ones(3)
        for call in (lambda: F.dropout(x, 1.5), lambda: torch.dropout(x, 1.5, True), lambda: nn.Dropout(-1)):
            with pytest.raises((ValueError, RuntimeError), match="between 0 and 1"):
                call()
        with pytest.raises(TypeError):
            torch.dropout(x)

    MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # noqa: RUF012  a table
        "Dropout": (lambda: nn.Dropout(0.5), (5, 2, 8)),
        "Dropout2d": (lambda: nn.Dropout2d(0.5), (2, 3, 4, 8)),
        "AlphaDropout": (lambda: nn.AlphaDropout(0.5), (5, 2, 8)),
        "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5), (5, 2, 8)),
        "LSTM": (lambda: nn.LSTM(8, 4, num_layers=2, dropout=0.5), (5, 2, 8)),
        "GRU": (lambda: nn.GRU(8, 4, num_layers=2, dropout=0.5), (5, 2, 8)),
        "RNN tanh": (lambda: nn.RNN(8, 4, num_layers=2, dropout=0.5), (5, 2, 8)),
        "RNN relu": (lambda: nn.RNN(8, 4, num_layers=2, dropout=0.5, nonlinearity="relu"), (5, 2, 8)),
    }

    @pytest.mark.parametrize("name", MODULES)
    def test_modules_in_training_give_what_they_give_without_dropout(self, name: str) -> None:
        build, shape = self.MODULES[name]
        module, x = build(), torch.randn(shape)
        state = torch.get_rng_state()
        outputs = [first_tensor(module(x)) for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(outputs[0], outputs[1])
        for part in module.modules():  # the same kernels as above, but told by the user not to drop
            for attribute in ("p", "dropout"):
                if isinstance(getattr(part, attribute, None), float):
                    setattr(part, attribute, 0.0)
        assert torch.equal(first_tensor(module(x)), outputs[0])

    @pytest.mark.parametrize("need_weights", [True, False])
    def test_multihead_attention(self, need_weights: bool) -> None:
        attention, x = nn.MultiheadAttention(8, 2, dropout=0.5), torch.randn(5, 2, 8)
        outputs = [attention(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
        assert torch.equal(outputs[0], outputs[1])

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_packed_sequences(self, kind: type[nn.RNNBase]) -> None:
        module = kind(8, 4, num_layers=2, dropout=0.5)
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 8), torch.tensor([5, 3]))
        state = torch.get_rng_state()
        assert torch.equal(module(packed)[0].data, module(packed)[0].data)
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_mode_still_sees_the_calls(self) -> None:
        x, lstm = torch.randn(3, 2, 8), nn.LSTM(8, 4, num_layers=2, dropout=0.5)
        with Watcher() as watcher:
            F.dropout(x, 0.5)
            torch.dropout(x, 0.5, True)
            torch.native_dropout(x, 0.5, True)
            F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
            lstm(x)
        seen = [name for name in watcher.names if name and ("dropout" in name or "attention" in name or "lstm" in name)]
        assert seen == [
            "torch.nn.functional.dropout",
            "torch.dropout",
            "torch.native_dropout",
            "torch.nn.functional.scaled_dot_product_attention",
            "torch.lstm",
        ]

    def test_vmap_needs_no_randomness(self) -> None:
        x = torch.randn(3, 4)
        assert torch.equal(torch.vmap(lambda row: F.dropout(row, 0.5))(x), x)


def first_tensor(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


class TestDropoutLater:
    @pytest.mark.parametrize("arguments", [{}, {"mode": True}, {"rm_dropout": False}])
    def test_dropout_stays_and_nothing_is_said_unless_it_is_to_go(
        self, arguments: dict[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with seed_all(**arguments):
            assert not is_inert()
        assert caplog.messages == []

    def test_who_turns_dropout_off_is_told_in_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        with seed_all(rm_dropout=True):
            assert is_inert()
        assert caplog.messages == [DROPOUT_OFF]

    def test_the_line_appears_in_a_program_that_configures_no_logging(self, tmp_path: Path) -> None:
        ended = run_script(tmp_path, "from tensorprobe.pytorch import seed_all; seed_all(rm_dropout=True)")
        assert ended.stderr.splitlines()[-1] == f"[tensorprobe] {DROPOUT_OFF}"

    def test_a_name_imported_while_inert_drops_again_afterwards(self) -> None:
        with seed_all(rm_dropout=True):
            kept, kept_attention = torch.dropout, F.scaled_dot_product_attention
        ones = torch.ones(64)
        with seed_all(rm_dropout=False):
            assert not torch.equal(kept(ones, 0.5, True), ones)
            x = torch.ones(1, 8, 8)
            assert not torch.equal(kept_attention(x, x, x, dropout_p=0.5), x)
        with seed_all(rm_dropout=True):
            assert torch.equal(kept(ones, 0.5, True), ones)

    def test_a_patch_over_ours_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = torch.dropout
        with seed_all(rm_dropout=True):
            ours = torch.dropout

            def theirs(*args: Any, **kwargs: Any) -> Any:
                return ours(*args, **kwargs)

            torch.dropout = theirs
        try:
            assert torch.dropout is theirs
            with seed_all(rm_dropout=False):
                assert not torch.equal(torch.dropout(torch.ones(64), 0.5, True), torch.ones(64))
        finally:
            torch.dropout = original

    def test_the_names_that_torch_knows_do_not_depend_on_the_order(self, tmp_path: Path) -> None:
        """Torch fills its table of names once; filled while the patches are on, it would not know the originals."""
        program = (
            "import torch; original = torch.nn.functional.scaled_dot_product_attention\n"
            "assert not torch.overrides._get_overridable_functions.cache_info().currsize\n"
            "from tensorprobe.capture.torch.seed import seed_all; handle = seed_all(rm_dropout=True)\n"
            "assert torch.overrides.resolve_name(original).endswith('scaled_dot_product_attention')\n"
        )
        run_script(tmp_path, program)

    @pytest.mark.filterwarnings("ignore")
    def test_scripting_works_meanwhile_and_afterwards(self) -> None:
        def drop(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(torch.dropout(x, 0.0, True), 0.0)

        ones = torch.ones(8)
        with seed_all(rm_dropout=True):
            assert torch.equal(torch.jit.script(drop)(ones), ones)
        assert torch.equal(torch.jit.script(drop)(ones), ones)

    def test_compiling_works_afterwards(self) -> None:
        """torch.compile too fills a table once; filled while the patches are on, it would not know torch.dropout."""
        program = (
            "import torch; from tensorprobe.capture.torch.seed import seed_all\n"
            "def drop(x): return torch.dropout(x, 0.5, True)\n"
            "ones = torch.ones(64); compiled = torch.compile(drop, backend='eager', fullgraph=True)\n"
            "with seed_all(rm_dropout=True): assert torch.equal(compiled(ones), ones)\n"
            "assert not torch.equal(compiled(ones), ones)\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
