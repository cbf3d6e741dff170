"""Fine-tuning a small Whisper of transformers with label smoothing."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tensorprobe.pytorch import PrecisionDebugger

PAD, START, EOT, VOCAB = 0, 1, 2, 40
MELS, FRAMES, TEXT, BATCH = 8, 28, 11, 3
SMOOTHING = 0.1


def get_model():
    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=MELS,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=FRAMES // 2,
        max_target_positions=16,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=EOT,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        use_cache=False,
        attn_implementation="eager",
    )
    model = WhisperForConditionalGeneration(config)
    for name, p in model.named_parameters():
        if not p.requires_grad:  # the sinusoids of the encoder
            continue
        x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(p.shape))
        if name.endswith("bias"):
            x = 0.1 * x
        elif "layer_norm" in name:
            x = 1 + 0.1 * x
        elif "embed" in name:
            x = 0.4 * x
        else:
            x = 1.3 * x / np.sqrt(np.prod(p.shape[1:]))
        p.data.copy_(torch.from_numpy(x))
    return model


def examples(step):
    rs = np.random.RandomState(900 + step)
    mel = rs.standard_normal((BATCH, MELS, FRAMES)).astype(np.float32)
    mel = (mel + np.roll(mel, 1, axis=2)) / 2
    labels = np.full((BATCH, TEXT), -100)
    for i in range(BATCH):
        n = rs.randint(5, TEXT + 1)
        labels[i, : n - 1] = rs.randint(3, VOCAB, n - 1)
        labels[i, n - 1] = EOT
    return torch.from_numpy(mel), torch.from_numpy(labels)


def shift(labels):
    ids = torch.full_like(labels, PAD)
    ids[:, 0] = START
    ids[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == -100, PAD)
    return ids


def smoothed_loss(logits, labels):
    """cross-entropy with (1 - s) at the label and s spread over the whole vocabulary"""
    keep = labels != -100
    truth = F.one_hot(labels.clamp(min=0), VOCAB).to(logits.dtype)
    truth = (1 - SMOOTHING) * truth + SMOOTHING / VOCAB
    losses = -(truth * F.log_softmax(logits, dim=-1)).sum(dim=-1)
    return losses[keep].mean()


def train(dump):
    model = get_model().train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=2e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    debugger = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        mel, labels = examples(step)
        debugger.start(model)
        logits = model(input_features=mel, decoder_input_ids=shift(labels)).logits
        loss = smoothed_loss(logits, labels)
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().pow(2).sum() for p in params) ** 0.5
        size = sum(p.detach().double().pow(2).sum() for p in params) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} weights {size:.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    train(sys.argv[1])
