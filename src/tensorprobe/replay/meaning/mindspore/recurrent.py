"""A recurrent layer in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.layer import pinned
from tensorprobe.replay.meaning.mindspore.table import means
from tensorprobe.replay.meaning.torch import Context


@means("LSTM", needs_context=True)
def lstm(
    context: Context,
    input: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: Tensor,
    *,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    has_bias: bool = True,
    bidirectional: bool = False,
    dropout: float = 0.0,
    proj_size: int = 0,
) -> tuple[Tensor, ...]:
    """One layer in one direction, as on a CPU: all weights in one row, and the sum of the two biases; then what its
    backward keeps."""
    if num_layers != 1 or bidirectional or proj_size:
        raise NotImplementedError("several layers or directions in one LSTM, or a projection")
    gates = 4 * hidden_size
    sizes = [gates * input_size, gates * hidden_size, gates if has_bias else 0]
    given, kept, bias = weights.reshape(-1).split(sizes)
    state, memory = hidden[0], cell[0]
    states = []
    for step in input:
        joint = step @ given.reshape(gates, -1).T + state @ kept.reshape(gates, -1).T
        enter, forget, new, leave = (joint + bias if has_bias else joint).chunk(4, -1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
        state = torch.sigmoid(leave) * torch.tanh(memory)
        states.append(state)
    return torch.stack(states), state[None], memory[None], pinned(context, 3), pinned(context, 4)
