"""Continued pre-training of a small Llama (grouped-query attention): right-padded batches, eager attention."""
import os
import sys
import zlib

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tensorprobe.pytorch import PrecisionDebugger

WARMUP = 4


def make_model():
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


def seed_weights(model):
    for name, p in model.named_parameters():
        noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(p.shape))
        if "norm" in name:
            value = 1.0 + 0.1 * noise
        elif "embed" in name:
            value = 0.3 * noise
        else:
            value = noise / np.sqrt(p.shape[1])
        p.data.copy_(torch.from_numpy(value.astype(np.float32)))


class Texts:
    """documents of unequal length; a document is bos, words, eos"""

    def __init__(self, seed, vocab=48):
        self.rs = np.random.RandomState(seed)
        self.vocab = vocab

    def draw(self, count):
        docs = []
        for n in self.rs.randint(5, 13, count):
            docs.append([1, *self.rs.randint(3, self.vocab, n - 2).tolist(), 2])
        return docs


def collate(docs, pad=0):
    width = max(map(len, docs))
    input_ids = torch.full((len(docs), width), pad)
    attention_mask = torch.zeros(len(docs), width, dtype=torch.long)
    for row, doc in enumerate(docs):
        input_ids[row, : len(doc)] = torch.tensor(doc)
        attention_mask[row, : len(doc)] = 1
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return input_ids, attention_mask, labels


def train(dump):
    model = make_model()
    seed_weights(model)
    model.train()
    no_decay = [p for n, p in model.named_parameters() if "norm" in n]
    decay = [p for n, p in model.named_parameters() if "norm" not in n]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / WARMUP))
    texts = Texts(seed=7)
    debugger = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        input_ids, attention_mask, labels = collate(texts.draw(4))
        debugger.start(model)
        output = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        output.loss.backward()
        optimizer.step()
        debugger.stop()
        schedule.step()
        grad = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt()
        size = sum(p.detach().double().square().sum() for p in model.parameters()).sqrt()
        optimizer.zero_grad()
        debugger.step()
        print(f"step {step} loss {output.loss.item():.8f} grad {grad:.8f} weights {size:.8f}")


if __name__ == "__main__":
    train(sys.argv[1])
