"""GPT-NeoX of transformers, two losses: next word, and the square of the log partition function (z loss)."""
import os, sys
import numpy as np
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from tensorprobe.pytorch import PrecisionDebugger

VOCAB, PAD = 37, 0


def build():
    config = GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=28, max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}, rotary_pct=0.5, rotary_emb_base=500.0,
        use_parallel_residual=True, hidden_act="gelu", layer_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="eager",
        attention_dropout=0.0, hidden_dropout=0.0, use_cache=False, bos_token_id=1, eos_token_id=2)
    model = GPTNeoXForCausalLM(config)
    rng = np.random.default_rng(8)
    with torch.no_grad():
        for name, p in model.named_parameters():
            value = torch.tensor(rng.standard_normal(tuple(p.shape)), dtype=torch.float32)
            p.copy_(value * (1.2 / p.shape[-1] ** 0.5) if p.ndim == 2 else (1 + 0.2 * value if "norm" in name and "weight" in name else 0.2 * value))
    return model.train()


def batch(step, size=4, length=9):
    rng = np.random.default_rng([13, step])
    ids = rng.integers(3, VOCAB, (size, length))
    alive = (np.arange(length)[None] < np.array([9, 6, 8, 4])[:, None]).astype(np.int64)
    return torch.tensor(ids * alive), torch.tensor(alive)


def main():
    model = build()
    torch.save(model.state_dict(), os.environ["WEIGHTS"] + "/neox.pt")
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3, weight_decay=0.02, decoupled_weight_decay=True, eps=1e-5)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 1))):
        ids, alive = batch(step)
        debugger.start(model)
        out = model(input_ids=ids, attention_mask=alive, labels=ids.masked_fill(alive == 0, -100))
        z = torch.logsumexp(out.logits[:, :-1], dim=-1)[alive[:, 1:] == 1]
        loss = out.loss + 1e-2 * z.square().mean()
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = torch.stack([p.grad.double().norm() for p in model.parameters() if p.grad is not None]).norm()
        print(f"{step} {loss.item():.8f} {grad:.8f} {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
