"""States along the sequence: Mamba-2 (by chunks), RecurrentGemma (a linear recurrence, then attention), RWKV."""

from __future__ import annotations

from dataclasses import replace

import torch

from held_out.model import Model
from held_out.patch import Fault
from held_out.third_party.language import WORDS, make_tokens
from held_out.variant import CHECKPOINTING, CHUNKS, EVERY, HALVES, SDPA

_MIXER = "backbone.layers.0.mixer"
_AHEAD = Fault(
    "convolution that looks ahead",
    _MIXER,
    "getitem conv1d",
    ")[:, :, :seq_len]",
    ")[:, :, -seq_len:]",
    function="causal_conv1d_fn",
)
_SIGMOID = Fault(
    "gate by a sigmoid",
    "backbone.layers.1.mixer.norm",
    "silu sigmoid mul",
    "nn.functional.silu(gate.to(torch.float32))",
    "torch.sigmoid(gate.to(torch.float32))",
)
_MAMBA2_FAULTS = (
    _AHEAD,
    replace(_AHEAD, name="two at once: convolution and gate", second=_SIGMOID),
    _SIGMOID,
    replace(_SIGMOID, name="gate by a sigmoid, against longer chunks", variant="longer chunks"),
    Fault(
        "state of a chunk decayed from its start",
        _MIXER,
        "exp sub getitem",
        "torch.exp(A_cumsum[:, :, :, -1:] - A_cumsum)",
        "torch.exp(A_cumsum)",
        function="mamba2_chunk_scan",
    ),
    Fault(
        "skip forgotten",
        _MIXER,
        "add getitem reshape",
        "output = output + D_residual",
        "output = output",
        function="mamba2_chunk_scan",
    ),
    Fault(
        "input and output of the state exchanged",
        "backbone.layers.1.mixer",
        "split view float to repeat_interleave einsum",
        "hidden_states, B, C = torch.split(",
        "hidden_states, C, B = torch.split(",
    ),
    Fault(
        "residual detached",
        "backbone.layers.1",
        "add detach to",
        "hidden_states = residual + hidden_states",
        "hidden_states = residual.detach() + hidden_states",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        f"{_MIXER}.norm",
        "add rsqrt",
        setting=("variance_epsilon", 1e-1),
        steps=3,
        first_step=2,
    ),
)

_LRU = "model.layers.0.temporal_block.rg_lru"
_WINDOW = "model.layers.2.temporal_block"
_RESET = Fault(
    "first token scaled, too",
    _LRU,
    "add mul to type type_as",
    "multiplier = reset + ~reset * multiplier",
    "multiplier = multiplier",
)
_RECURRENT_GEMMA_FAULTS = (
    Fault("scale of the embedding", "model", "mul type to", setting=("normalizer", torch.tensor(1.0))),
    Fault(
        "half the decay",
        _LRU,
        "mul",
        "log_recurrent_gate = -8.0 * recurrent_gate",
        "log_recurrent_gate = -4.0 * recurrent_gate",
    ),
    Fault(
        "gate of the input by the other weight",
        "model.layers.1.temporal_block.rg_lru",
        "baddbmm",
        "reshape_act, self.input_gate_weight)",
        "reshape_act, self.recurrent_gate_weight)",
    ),
    _RESET,
    replace(_RESET, name="first token scaled, against another attention", variant="sdpa"),
    Fault(
        "plain square root",
        _LRU,
        "sqrt sqrtboundderivative apply",
        "SqrtBoundDerivative.apply(1 - a_square)",
        "torch.sqrt(1 - a_square)",
        has_effect=False,
    ),
    Fault(
        "norm without its one",
        "model.layers.1.channel_pre_norm",
        "add mul",
        "(1.0 + self.weight.float())",
        "self.weight.float()",
    ),
    Fault("scale of the scores", _WINDOW, "mul scaled_dot_product_attention", setting=("scaling", 0.125)),
    Fault(
        "logits not capped",
        "",
        "div tanh mul float to view cross_entropy",
        "logits = nn.functional.tanh(logits / cap) * cap",
        "logits = logits",
    ),
    Fault(
        "decay detached",
        _LRU,
        "detach mul",
        "recurrent_gate = recurrent_gate * ~reset",
        "recurrent_gate = recurrent_gate.detach() * ~reset",
        method="_rnn_scan",
        is_backward=True,
    ),
)

_TIME = "rwkv.blocks.0.attention"
_BONUS = Fault(
    "bonus of the present token forgotten",
    _TIME,
    "add sub exp",
    "e2 = torch.exp(current_key + time_first - max_for_output)",
    "e2 = torch.exp(current_key - max_for_output)",
    function="rwkv_linear_attention_cpu",
)
_SQUARE = Fault(
    "not squared",
    "rwkv.blocks.1.feed_forward",
    "square relu linear",
    "torch.square(torch.relu(self.key(key)))",
    "torch.relu(self.key(key))",
    paths="rwkv.blocks.1.feed_forward rwkv.blocks.1.feed_forward.value",
)
_RWKV_FAULTS = (
    Fault(
        "shift by one token forgotten",
        _TIME,
        "pad mul",
        "shifted = self.time_shift(hidden)",
        "shifted = hidden",
        method="extract_key_value",
        paths=f"{_TIME} {_TIME}.time_shift",
    ),
    _BONUS,
    _SQUARE,
    replace(_BONUS, name="two at once: bonus and square", second=_SQUARE),
    Fault(
        "denominator without decay",
        _TIME,
        "mul add",
        "den_state = e1 * den_state + e2",
        "den_state = den_state + e2",
        function="rwkv_linear_attention_cpu",
    ),
    Fault(
        "another largest exponent",
        _TIME,
        "maximum add sub",
        "max_for_output = torch.maximum(max_state, current_key + time_first)",
        "max_for_output = current_key + time_first",
        function="rwkv_linear_attention_cpu",
        has_effect=False,
    ),
    Fault(
        "residual of another branch",
        "rwkv.blocks.0",
        "add",
        "hidden = hidden + feed_forward",
        "hidden = attention + feed_forward",
    ),
    Fault(
        "receptance detached",
        "rwkv.blocks.1.attention",
        "mul detach",
        "self.output(receptance * rwkv)",
        "self.output(receptance.detach() * rwkv)",
        is_backward=True,
    ),
    Fault(
        "epsilon only in the third step",
        "rwkv.blocks.0.ln2",
        "layer_norm",
        setting=("eps", 1e-1),
        steps=3,
        first_step=2,
    ),
)

_SMALL = {"vocab_size": WORDS, "hidden_size": 32, "use_cache": False}
STATE_MODELS = (
    Model(
        "mamba2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            **_SMALL,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 2,
            "chunk_size": 4,
        },
        make_tokens,
        (CHUNKS, CHECKPOINTING, HALVES, *EVERY),
        _MAMBA2_FAULTS,
        has_attention=False,
    ),
    Model(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {
            **_SMALL,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 96,
            "attention_window_size": 4,
            "logits_soft_cap": 2.0,
        },
        make_tokens,
        (SDPA, CHECKPOINTING, HALVES, *EVERY),
        _RECURRENT_GEMMA_FAULTS,
    ),
    Model(
        "rwkv",
        "RwkvForCausalLM",
        "RwkvConfig",
        {**_SMALL, "num_hidden_layers": 2, "intermediate_size": 48, "context_length": 16},
        make_tokens,
        (CHECKPOINTING, HALVES, *EVERY),
        _RWKV_FAULTS,
        has_attention=False,
    ),
)
