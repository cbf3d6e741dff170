"""BiLSTM-CRF in MindSpore, after the sequence labeling tutorial (normalizer, score, seq_length)."""
import os
import sys

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import Parameter, Tensor
from mindspore.common.initializer import Uniform, initializer
from mindspore.experimental import optim

from tensorprobe.mindspore import PrecisionDebugger

N_WORDS, N_CHARS, WORD_DIM, CHAR_DIM, HIDDEN, TAGS = 50, 20, 12, 6, 10, 5


def sequence_mask(seq_length, max_length):
    range_vector = ops.arange(0, max_length, 1).astype(seq_length.dtype)
    return range_vector < seq_length.expand_dims(1)


class CRF(nn.Cell):
    def __init__(self, num_tags):
        super().__init__()
        self.start_transitions = Parameter(initializer(Uniform(0.1), (num_tags,)), name="start_transitions")
        self.end_transitions = Parameter(initializer(Uniform(0.1), (num_tags,)), name="end_transitions")
        self.transitions = Parameter(initializer(Uniform(0.1), (num_tags, num_tags)), name="transitions")

    def construct(self, emissions, tags, seq_length):
        mask = sequence_mask(seq_length, emissions.shape[1])
        emissions = emissions.swapaxes(0, 1)
        tags, mask = tags.swapaxes(0, 1), mask.swapaxes(0, 1)
        numerator = self.compute_score(emissions, tags, seq_length - 1, mask)
        denominator = self.compute_normalizer(emissions, mask)
        return (denominator - numerator).mean()

    def compute_score(self, emissions, tags, seq_ends, mask):
        length, batch = tags.shape
        mask = mask.astype(emissions.dtype)
        index = ops.arange(batch)
        score = self.start_transitions[tags[0]]
        score += emissions[0, index, tags[0]]
        for i in range(1, length):
            score += self.transitions[tags[i - 1], tags[i]] * mask[i]
            score += emissions[i, index, tags[i]] * mask[i]
        last_tags = tags[seq_ends, index]
        score += self.end_transitions[last_tags]
        return score

    def compute_normalizer(self, emissions, mask):
        score = self.start_transitions + emissions[0]
        for i in range(1, emissions.shape[0]):
            broadcast_score = score.expand_dims(2)
            broadcast_emissions = emissions[i].expand_dims(1)
            next_score = broadcast_score + self.transitions + broadcast_emissions
            next_score = ops.logsumexp(next_score, 1)
            score = ops.where(mask[i].expand_dims(1), next_score, score)
        score += self.end_transitions
        return ops.logsumexp(score, 1)


class CharEncoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(N_CHARS, CHAR_DIM, padding_idx=0)
        self.conv = nn.Conv1d(CHAR_DIM, 8, 3, pad_mode="same", has_bias=True)

    def construct(self, chars):
        b, t, c = chars.shape
        chars = chars.reshape(-1, c)
        keep = (chars != 0).astype(ms.float32).expand_dims(-1)  # padding_idx only zeroes the row: no gradient for it either
        x = (self.table(chars) * keep).swapaxes(1, 2)
        x = ops.tanh(self.conv(x))
        return ops.amax(x, axis=-1).reshape(b, t, -1)


class BiLSTM_CRF(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS, WORD_DIM, padding_idx=0)
        self.char_encoder = CharEncoder()
        self.lstm = nn.LSTM(WORD_DIM + 8, HIDDEN, bidirectional=True, batch_first=True)
        self.layer_norm = nn.LayerNorm((2 * HIDDEN,), epsilon=1e-5)
        self.hidden2tag = nn.Dense(2 * HIDDEN, TAGS)
        self.crf = CRF(TAGS)

    def construct(self, words, chars, seq_length, tags):
        embeds = ops.cat((self.embedding(words), self.char_encoder(chars)), axis=-1)
        outputs, _ = self.lstm(embeds, seq_length=seq_length)
        feats = self.hidden2tag(self.layer_norm(outputs))
        return self.crf(feats, tags, seq_length)


NAMES = {
    "embedding.embedding_table": "words.weight", "char_encoder.table.embedding_table": "chars.weight",
    "char_encoder.conv.weight": "char_conv.weight", "char_encoder.conv.bias": "char_conv.bias",
    "layer_norm.gamma": "norm.weight", "layer_norm.beta": "norm.bias",
    "hidden2tag.weight": "emit.weight", "hidden2tag.bias": "emit.bias",
}


def load_weights(net):
    saved = np.load(os.path.join(os.environ["WEIGHTS"], "tagger.npz"))
    for name, p in net.parameters_and_names():
        value = saved[NAMES.get(name, name)]
        p.set_data(Tensor(value.reshape(p.shape)))


def batch(step):
    rng = np.random.RandomState(40 + step)
    lengths = np.array([5, 7, 3, 6])
    words = rng.randint(1, N_WORDS, (4, 7))
    chars = rng.randint(1, N_CHARS, (4, 7, 5))
    tags = rng.randint(0, TAGS, (4, 7))
    valid = np.arange(7)[None] < lengths[:, None]
    chars[..., 3:][rng.rand(4, 7) < 0.4] = 0
    return words * valid, chars * valid[..., None], lengths, tags * valid


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    net = BiLSTM_CRF()
    load_weights(net)
    net.set_train()
    optimizer = optim.AdamW(net.trainable_params(), lr=5e-3, weight_decay=0.0)
    grad_fn = ms.value_and_grad(net, None, optimizer.parameters)

    def train_step(*data):
        loss, grads = grad_fn(*data)
        grads = ops.clip_by_global_norm(grads, 1.0)
        optimizer(grads)
        return loss, grads

    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        data = [Tensor(a, ms.int32) for a in batch(step)]
        dbg.start(net)
        loss, grads = train_step(*data)
        dbg.stop()
        dbg.step()
        gnorm = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads))
        first = np.sqrt((grads[0].asnumpy().astype(np.float64) ** 2).sum())
        wnorm = np.sqrt(sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in net.trainable_params()))
        print(f"step {step} loss {float(loss.asnumpy()):.8f} clipped gnorm {gnorm:.8f} of words {first:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
