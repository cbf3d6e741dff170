"""Masked language modelling in MindSpore: joined projections, additive mask, weighted loss, own accumulation of gradients."""
import os
import sys

import mindspore as ms
import mindspore.common.dtype as mstype
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import Parameter, Tensor
from mindspore.common.initializer import Normal, initializer

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class BertConfig:
    vocab_size = 60
    hidden_size = 32
    num_attention_heads = 4
    num_hidden_layers = 2
    intermediate_size = 48
    max_position_embeddings = 16
    type_vocab_size = 2
    accumulation_steps = 2


class EmbeddingLayer(nn.Cell):
    """Gather from the word table, one-hot product for the token types."""

    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.word_table = Parameter(initializer(Normal(0.02), [config.vocab_size, width]), name="word_table")
        self.position_table = Parameter(initializer(Normal(0.02), [config.max_position_embeddings, width]), name="position_table")
        self.type_table = Parameter(initializer(Normal(0.02), [config.type_vocab_size, width]), name="type_table")
        self.num_types = config.type_vocab_size
        self.layernorm = nn.LayerNorm((width,), epsilon=1e-12)
        self.gather = ops.Gather()
        self.on, self.off = Tensor(1.0, mstype.float32), Tensor(0.0, mstype.float32)

    def construct(self, input_ids, token_type_ids):
        words = self.gather(self.word_table, input_ids, 0)
        one_hot = ops.one_hot(token_type_ids.reshape(-1), self.num_types, self.on, self.off)
        types = ops.matmul(one_hot, self.type_table).reshape(words.shape)
        positions = self.position_table[: input_ids.shape[1]].expand_dims(0)
        return self.layernorm(words + types + positions)


class FusedSelfAttention(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.size_per_head = config.hidden_size // self.heads
        self.qkv = nn.Dense(config.hidden_size, 3 * config.hidden_size)
        self.scores_mul = 1.0 / np.sqrt(float(self.size_per_head))

    def construct(self, x, additive_mask):
        b, t, width = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, self.size_per_head)
        qkv = ops.transpose(qkv, (2, 0, 3, 1, 4))
        query, key, value = qkv[0], qkv[1], qkv[2]
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * self.scores_mul
        probs = ops.softmax(scores + additive_mask, axis=-1)
        context = ops.matmul(probs, value)
        return ops.transpose(context, (0, 2, 1, 3)).reshape(b, t, width)


class EncoderCell(nn.Cell):
    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.attention = FusedSelfAttention(config)
        self.projection = nn.Dense(width, width)
        self.layernorm1 = nn.LayerNorm((width,), epsilon=1e-12)
        self.intermediate = nn.Dense(width, config.intermediate_size, activation=nn.GELU(approximate=False))
        self.output = nn.Dense(config.intermediate_size, width)
        self.layernorm2 = nn.LayerNorm((width,), epsilon=1e-12)

    def construct(self, x, additive_mask):
        x = self.layernorm1(x + self.projection(self.attention(x, additive_mask)))
        return self.layernorm2(x + self.output(self.intermediate(x)))


class GetMaskedLMOutput(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Dense(config.hidden_size, config.hidden_size, activation=nn.GELU(approximate=False))
        self.layernorm = nn.LayerNorm((config.hidden_size,), epsilon=1e-12)
        self.output_bias = Parameter(initializer("zeros", [config.vocab_size]), name="output_bias")

    def construct(self, x, table):
        x = self.layernorm(self.dense(x))
        logits = ops.matmul(x, table.swapaxes(0, 1)) + self.output_bias
        return ops.log_softmax(logits, -1)


class BertPreTraining(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.embedding = EmbeddingLayer(config)
        self.encoder = nn.CellList([EncoderCell(config) for _ in range(config.num_hidden_layers)])
        self.mlm = GetMaskedLMOutput(config)
        self.gather_loss = ops.GatherD()

    def construct(self, input_ids, token_type_ids, input_mask, labels):
        keep = input_mask.astype(mstype.float32)
        additive_mask = (1.0 - keep)[:, None, None, :] * -10000.0
        x = self.embedding(input_ids, token_type_ids)
        for layer in self.encoder:
            x = layer(x, additive_mask)
        log_probs = self.mlm(x, self.embedding.word_table)
        weights = (labels != -100).astype(mstype.float32)
        index = ops.maximum(labels, 0).expand_dims(-1)
        per_token = -self.gather_loss(log_probs, 2, index).squeeze(-1)
        return (per_token * weights).sum() / weights.sum()


class GradientAccumulator:
    def __init__(self, size):
        self.size = size
        self.inner = None

    def add(self, grads):
        self.inner = list(grads) if self.inner is None else [ops.add(a, b) for a, b in zip(self.inner, grads)]

    def clear(self):
        self.inner = None


def load_checkpoint(net, config):
    w = np.load(os.path.join(os.environ["WEIGHTS"], "bert.npz"))
    rename = {"embedding.word_table": "embeddings.word_embeddings.weight", "embedding.position_table": "embeddings.position_embeddings.weight",
              "embedding.type_table": "embeddings.token_type_embeddings.weight", "mlm.output_bias": "decoder.bias"}
    pairs = [("embedding.layernorm", "embeddings.LayerNorm"), ("mlm.dense", "transform"), ("mlm.layernorm", "transform_norm")]
    for i in range(config.num_hidden_layers):
        pairs += [(f"encoder.{i}.{a}", f"layer.{i}.{b}") for a, b in [
            ("projection", "attention_output"), ("layernorm1", "attention_norm"), ("intermediate", "intermediate"), ("output", "output"), ("layernorm2", "output_norm")]]
    for ours, theirs in pairs:
        gain, shift = ("gamma", "beta") if "layernorm" in ours else ("weight", "bias")
        rename[f"{ours}.{gain}"], rename[f"{ours}.{shift}"] = f"{theirs}.weight", f"{theirs}.bias"
    for p in net.trainable_params():
        if ".qkv." in p.name:
            base, kind = p.name.replace("encoder", "layer").rsplit(".qkv.", 1)
            value = np.concatenate([w[f"{base}.{part}.{kind}"] for part in ("query", "key", "value")])
        else:
            value = w[rename[p.name]]
        p.set_data(Tensor(value))


def make_micro_batch(index, vocab=60, mask_id=4):
    rng = np.random.RandomState(300 + index)
    lengths = rng.randint(6, 13, 3)
    lengths[0] = 12
    valid = np.arange(12)[None] < lengths[:, None]
    ids = rng.randint(5, vocab, (3, 12)) * valid
    types = (np.arange(12)[None] >= lengths[:, None] // 2) & valid
    chosen = (rng.rand(*ids.shape) < 0.3) & (ids > mask_id)
    chosen[:, 1] = True
    labels = np.where(chosen, ids, -100)
    ids = np.where(chosen & (rng.rand(*ids.shape) < 0.8), mask_id, ids)
    return [Tensor(a.astype(np.int32)) for a in (ids, types, valid, labels)]


def norm(tensors):
    return np.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in tensors))


def main():
    config = BertConfig()
    net = BertPreTraining(config)
    load_checkpoint(net, config)
    net.set_train()
    params = net.trainable_params()
    plain = [p for p in params if p.name.endswith(("gamma", "beta", "bias"))]
    decayed = [p for p in params if not p.name.endswith(("gamma", "beta", "bias"))]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}, {"order_params": params}]
    optimizer = nn.AdamWeightDecay(groups, learning_rate=2e-3, eps=1e-6)
    accumulator = GradientAccumulator(config.accumulation_steps)

    def forward(*batch):
        return net(*batch) / accumulator.size

    compute = ms.value_and_grad(forward, None, params)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            total_loss = 0.0
            for i in range(config.accumulation_steps):
                loss, grads = compute(*make_micro_batch(step * config.accumulation_steps + i))
                accumulator.add(grads)
                total_loss += float(loss.asnumpy())
            grads = accumulator.inner
            optimizer(tuple(grads))
            table = net.embedding.word_table
            gtable = [g for g, p in zip(grads, params) if p is table]
            print(f"step {step} loss {total_loss:.8f} gnorm {norm(grads):.8f} gtable {norm(gtable):.8f} wnorm {norm(params):.8f} table {norm([table]):.8f}")
            accumulator.clear()
            run.step()


if __name__ == "__main__":
    main()
