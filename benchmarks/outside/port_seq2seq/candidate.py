"""Seq2seq with attention in MindSpore, PyNative. The energy of the encoder outputs is computed once, not in every step."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from tensorprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

PAD_ID = 0


class Config:
    src_vocab, tgt_vocab = 40, 36
    emb_dim, enc_dim, dec_dim = 16, 12, 20
    clip_norm = 0.5
    lr, beta1, beta2, eps, weight_decay = 2e-3, 0.9, 0.98, 1e-12, 1e-4


class Encoder(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c.src_vocab, c.emb_dim)
        self.rnn = nn.GRU(c.emb_dim, c.enc_dim, batch_first=True, bidirectional=True)
        self.bridge = nn.Dense(2 * c.enc_dim, c.dec_dim, activation=nn.Tanh())

    def construct(self, src, src_len):
        memory, h_n = self.rnn(self.embedding(src), seq_length=src_len)
        h_n = h_n.transpose(1, 0, 2).reshape(src.shape[0], -1)
        return memory, self.bridge(h_n)


class BahdanauAttention(nn.Cell):
    """W [h; m] + b = W_h h + W_m m + b, with the second part prepared."""

    def __init__(self, c):
        super().__init__()
        self.query = nn.Dense(c.dec_dim, c.dec_dim, has_bias=False)
        self.key = nn.Dense(2 * c.enc_dim, c.dec_dim)
        self.score = nn.Dense(c.dec_dim, 1, has_bias=False)

    def prepare(self, memory):
        return self.key(memory)

    def construct(self, hidden, keys, memory, bias):
        energy = ops.tanh(self.query(hidden).expand_dims(1) + keys)
        scores = self.score(energy)[..., 0] + bias
        alpha = ops.softmax(scores, axis=-1)
        return (alpha.expand_dims(-1) * memory).sum(axis=1)


class Decoder(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c.tgt_vocab, c.emb_dim)
        self.attention = BahdanauAttention(c)
        self.cell = nn.GRUCell(c.emb_dim + 2 * c.enc_dim, c.dec_dim)
        self.classifier = nn.Dense(c.dec_dim + 2 * c.enc_dim + c.emb_dim, c.tgt_vocab)
        self.cat = ops.Concat(axis=-1)

    def construct(self, token, state, keys, memory, bias):
        emb = self.embedding(token)
        context = self.attention(state, keys, memory, bias)
        state = self.cell(self.cat((emb, context)), state)
        return self.classifier(self.cat((state, context, emb))), state


class Seq2Seq(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.encoder = Encoder(c)
        self.decoder = Decoder(c)

    def construct(self, src, src_len, tgt, forcing):
        memory, state = self.encoder(src, src_len)
        bias = ops.cast(ops.equal(src, PAD_ID), ms.float32) * -1e9
        keys = self.decoder.attention.prepare(memory)
        logits = []
        token = tgt[:, 0]
        for t in range(1, tgt.shape[1]):
            step_logits, state = self.decoder(token, state, keys, memory, bias)
            logits.append(step_logits)
            token = tgt[:, t] if forcing[t] else ops.argmax(step_logits, dim=-1)
        return ops.stack(logits, axis=1)


class MaskedCrossEntropy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.ce = nn.CrossEntropyLoss(reduction="none")

    def construct(self, logits, target):
        mask = (target != PAD_ID).astype(logits.dtype).reshape(-1)
        losses = self.ce(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))
        return ops.reduce_sum(losses * mask) / ops.reduce_sum(mask)


class TrainOneStep(nn.Cell):
    def __init__(self, network, loss_fn, optimizer, clip_norm):
        super().__init__(auto_prefix=False)
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self.clip_norm = clip_norm
        self.grad_fn = ms.value_and_grad(self.compute_loss, None, optimizer.parameters)

    def compute_loss(self, src, src_len, tgt, forcing):
        return self.loss_fn(self.network(src, src_len, tgt, forcing), tgt[:, 1:])

    def construct(self, *batch):
        loss, grads = self.grad_fn(*batch)
        grads = ops.clip_by_global_norm(grads, self.clip_norm)
        self.optimizer(grads)
        return loss, grads


def draw(name, shape):
    """As the reference draws it: by its own name and shape."""
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    bound = 0.6 if "embedding" in name else 1.2 / np.sqrt(shape[-1])
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def load_weights(net, c):
    joined = draw("decoder.attention.attn.weight", (c.dec_dim, 2 * c.enc_dim + c.dec_dim))
    rename = {"encoder.embedding.embedding_table": "encoder.embedding.weight", "decoder.embedding.embedding_table": "decoder.embedding.weight",
              "decoder.attention.score.weight": "decoder.attention.v.weight", "decoder.attention.key.bias": "decoder.attention.attn.bias",
              "decoder.classifier.weight": "decoder.fc_out.weight", "decoder.classifier.bias": "decoder.fc_out.bias"}
    for name, p in net.parameters_and_names():
        if name == "decoder.attention.query.weight":
            value = joined[:, :c.dec_dim]
        elif name == "decoder.attention.key.weight":
            value = joined[:, c.dec_dim:]
        else:
            value = draw(rename.get(name, name), tuple(p.shape))
        p.set_data(Tensor(np.ascontiguousarray(value)))


def batch(step, c):
    rng = np.random.RandomState(55 + step)
    src_len, tgt_len = np.array([7, 5, 8, 4]), np.array([6, 7, 4, 5])
    src = rng.randint(3, c.src_vocab, (4, 8)) * (np.arange(8)[None] < src_len[:, None])
    tgt = rng.randint(3, c.tgt_vocab, (4, 7))
    tgt[:, 0] = 1
    tgt[np.arange(4), tgt_len - 1] = 2
    tgt = tgt * (np.arange(7)[None] < tgt_len[:, None])
    return [Tensor(a.astype(np.int32)) for a in (src, src_len, tgt)] + [rng.rand(7) < 0.7]


def norm(tensors):
    return np.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in tensors))


def main():
    c = Config()
    net = Seq2Seq(c)
    load_weights(net, c)
    net.set_train()
    params = net.trainable_params()
    optimizer = nn.Adam(params, learning_rate=c.lr, beta1=c.beta1, beta2=c.beta2, eps=c.eps, weight_decay=c.weight_decay)
    trainer = TrainOneStep(net, MaskedCrossEntropy(), optimizer, c.clip_norm)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        data = batch(step, c)
        debugger.start(net)
        loss, grads = trainer(*data)
        debugger.stop()
        debugger.step()
        enc, dec = (norm(g for g, p in zip(grads, params) if p.name.startswith(part)) for part in ("encoder", "decoder"))
        table = net.encoder.embedding.embedding_table
        print(f"step {step} loss {float(loss.asnumpy()):.8f} clipped {norm(grads):.8f} encoder {enc:.8f} decoder {dec:.8f} wnorm {norm(params):.8f} emb {norm([table]):.8f}")


if __name__ == "__main__":
    main()
