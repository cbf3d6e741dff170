"""MindSpore port of the small LLaMA: joined qkv and gate/up, the whole batch in one backward."""
import math
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim

from tensorprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

cfg = dict(vocab=61, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, seq=10)
STEPS = int(os.environ.get("STEPS", 2))


class LlamaRMSNorm(nn.Cell):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(dim), ms.float32), name="weight")
        self.eps = eps

    def construct(self, x):
        variance = mint.mean(mint.square(x), dim=-1, keepdim=True)
        return mint.mul(x * mint.rsqrt(variance + self.eps), self.weight)


def precompute_freqs(head_dim, seq, theta=10000.0):
    freqs = 1.0 / theta ** (np.arange(0, head_dim, 2).astype(np.float32) / head_dim)
    angle = np.outer(np.arange(seq, dtype=np.float32), freqs)
    angle = np.concatenate([angle, angle], axis=-1)
    return Tensor(np.cos(angle), ms.float32), Tensor(np.sin(angle), ms.float32)


class RotaryEmbedding(nn.Cell):
    def __init__(self, head_dim, seq):
        super().__init__()
        self.cos, self.sin = precompute_freqs(head_dim, seq)

    def rotate(self, x):
        x1, x2 = mint.chunk(x, 2, dim=-1)
        return mint.cat((mint.neg(x2), x1), dim=-1)

    def construct(self, x):
        t = x.shape[2]
        cos, sin = self.cos[:t], self.sin[:t]
        return x * cos + self.rotate(x) * sin


class LlamaAttention(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.n, self.kv = c["heads"], c["kv_heads"]
        self.d = c["dim"] // self.n
        self.qkv = nn.Dense(c["dim"], (self.n + 2 * self.kv) * self.d, has_bias=False)
        self.o = nn.Dense(c["dim"], c["dim"], has_bias=False)
        self.rope = RotaryEmbedding(self.d, c["seq"])
        self.scale = 1 / math.sqrt(self.d)

    def heads(self, x, n):
        b, t, _ = x.shape
        return ops.transpose(x.reshape(b, t, n, self.d), (0, 2, 1, 3))

    def construct(self, x, mask):
        b, t, c = x.shape
        q, k, v = ops.split(self.qkv(x), [self.n * self.d, self.kv * self.d, self.kv * self.d], axis=-1)
        q = self.rope(self.heads(q, self.n))
        k = self.rope(self.heads(k, self.kv))
        v = self.heads(v, self.kv)
        k = ops.repeat_elements(k, self.n // self.kv, axis=1)
        v = ops.repeat_elements(v, self.n // self.kv, axis=1)
        att = ops.bmm(q * self.scale, ops.swapaxes(k, 2, 3))
        att = ops.masked_fill(att, mask, Tensor(-1e9, ms.float32))
        att = ops.softmax(att, axis=-1)
        y = ops.transpose(ops.bmm(att, v), (0, 2, 1, 3)).reshape(b, t, c)
        return self.o(y)


class FeedForward(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.w13 = nn.Dense(c["dim"], 2 * c["hidden"], has_bias=False)
        self.w2 = nn.Dense(c["hidden"], c["dim"], has_bias=False)

    def construct(self, x):
        gate, up = mint.chunk(self.w13(x), 2, dim=-1)
        return self.w2(ops.silu(gate) * up)


class Block(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.attention_norm = LlamaRMSNorm(c["dim"])
        self.attention = LlamaAttention(c)
        self.ffn_norm = LlamaRMSNorm(c["dim"])
        self.feed_forward = FeedForward(c)

    def construct(self, x, mask):
        h = x + self.attention(self.attention_norm(x), mask)
        return h + self.feed_forward(self.ffn_norm(h))


class LlamaForCausalLM(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab"], c["dim"])
        self.layers = nn.CellList([Block(c) for _ in range(c["layers"])])
        self.norm = LlamaRMSNorm(c["dim"])
        self.output = nn.Dense(c["dim"], c["vocab"], has_bias=False)
        self.mask = Tensor(np.triu(np.ones((c["seq"], c["seq"])), k=1), ms.bool_)

    def construct(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.mask)
        return self.output(self.norm(h))


def load(net, path):
    w = dict(np.load(path))
    new = {"tok_embeddings.embedding_table": w["embed_tokens.weight"], "norm.weight": w["norm.weight"], "output.weight": w["lm_head.weight"]}
    for i in range(cfg["layers"]):
        s, d = f"layers.{i}.self_attn.", f"layers.{i}.attention."
        new[d + "qkv.weight"] = np.concatenate([w[s + f"{n}_proj.weight"] for n in ("q", "k", "v")])
        new[d + "o.weight"] = w[s + "o_proj.weight"]
        s, d = f"layers.{i}.mlp.", f"layers.{i}.feed_forward."
        new[d + "w13.weight"] = np.concatenate([w[s + "gate_proj.weight"], w[s + "up_proj.weight"]])
        new[d + "w2.weight"] = w[s + "down_proj.weight"]
        new[f"layers.{i}.attention_norm.weight"] = w[f"layers.{i}.input_layernorm.weight"]
        new[f"layers.{i}.ffn_norm.weight"] = w[f"layers.{i}.post_attention_layernorm.weight"]
    missing, _ = ms.load_param_into_net(net, {k: Parameter(Tensor(v), name=k) for k, v in new.items()}, strict_load=True)
    assert not missing, missing


def make_optimizer(net):
    decay = [p for p in net.trainable_params() if p.ndim > 1]
    others = [p for p in net.trainable_params() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), eps=1e-8)


def main():
    net = LlamaForCausalLM(cfg)
    load(net, os.path.join(os.environ["WEIGHTS"], "llama.npz"))
    net.set_train()
    opt = make_optimizer(net)

    def forward_fn(x, y):
        logits = net(x)
        return ops.cross_entropy(logits.reshape(-1, cfg["vocab"]), y.reshape(-1))

    grad_fn = ms.value_and_grad(forward_fn, None, opt.parameters)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    rng = np.random.RandomState(17)
    for step in range(STEPS):
        batch = rng.randint(0, cfg["vocab"], (4, cfg["seq"] + 1)).astype(np.int32)
        debugger.start(net)
        loss, grads = grad_fn(Tensor(batch[:, :-1]), Tensor(batch[:, 1:]))
        opt(grads)
        debugger.stop()
        debugger.step()
        gnorm = math.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
        wnorm = math.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in net.trainable_params()))
        print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {gnorm:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
