"""TD3 with behaviour cloning (TD3+BC): twin critics, delayed policy, smoothed target actions, soft target updates."""
import copy
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

STATE, ACTION, HIDDEN, BATCH = 5, 2, 16, 8
MAX_ACTION, GAMMA, TAU, POLICY_NOISE, NOISE_CLIP, DELAY, BC_ALPHA = 1.5, 0.97, 0.1, 0.2, 0.5, 2, 2.5


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(STATE, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.l2 = nn.Linear(HIDDEN, HIDDEN)
        self.l3 = nn.Linear(HIDDEN, ACTION)

    def forward(self, state):
        x = F.relu(self.norm(self.l1(state)))
        x = F.relu(self.l2(x))
        return MAX_ACTION * torch.tanh(self.l3(x))


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE + ACTION, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, 1)
        )

    def forward(self, state, action):
        return self.net(torch.cat([state, action], dim=-1)).squeeze(-1)


class TD3(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = Actor()
        self.q1, self.q2 = QNetwork(), QNetwork()

    def make_targets(self):
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.q1_target = copy.deepcopy(self.q1).requires_grad_(False)
        self.q2_target = copy.deepcopy(self.q2).requires_grad_(False)

    def critic_loss(self, state, action, next_state, reward, terminated, noise):
        with torch.no_grad():
            noise = (noise * POLICY_NOISE * MAX_ACTION).clamp(-NOISE_CLIP, NOISE_CLIP)
            next_action = (self.actor_target(next_state) + noise).clamp(-MAX_ACTION, MAX_ACTION)
            next_q = torch.min(self.q1_target(next_state, next_action), self.q2_target(next_state, next_action))
            target = reward + GAMMA * (1 - terminated) * next_q
        return F.mse_loss(self.q1(state, action), target) + F.mse_loss(self.q2(state, action), target)

    def actor_loss(self, state, action):
        pi = self.actor(state)
        q = self.q1(state, pi)
        scale = BC_ALPHA / q.abs().mean().detach()
        return -scale * q.mean() + F.mse_loss(pi, action)

    @torch.no_grad()
    def soft_update(self):
        for name in ("actor", "q1", "q2"):
            for p, target in zip(getattr(self, name).parameters(), getattr(self, name + "_target").parameters()):
                target.lerp_(p, TAU)


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (1 + 0.1 * value).astype(np.float32)
    scale = 0.1 if len(shape) == 1 else 1 / np.sqrt(shape[-1])
    return (scale * value).astype(np.float32)


def sample_buffer(step):
    """A batch of transitions; `terminated` ends the return, `truncated` (time limit) does not."""
    rng = np.random.RandomState(900 + step)
    state = rng.normal(0, 1, (BATCH, STATE)).astype(np.float32)
    action = rng.uniform(-MAX_ACTION, MAX_ACTION, (BATCH, ACTION)).astype(np.float32)
    next_state = (state + rng.normal(0, 0.3, (BATCH, STATE))).astype(np.float32)
    reward = rng.normal(0, 1, BATCH).astype(np.float32)
    terminated = (rng.rand(BATCH) < 0.25).astype(np.float32)
    truncated = ((rng.rand(BATCH) < 0.25) & (terminated == 0)).astype(np.float32)
    terminated[0], truncated[1] = 1, 1
    noise = rng.normal(0, 1, (BATCH, ACTION)).astype(np.float32)
    return state, action, next_state, reward, terminated, truncated, noise


def norm(tensors):
    return np.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


def main():
    agent = TD3()
    with torch.no_grad():
        for name, p in agent.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    agent.make_targets()
    critic_params = [*agent.q1.parameters(), *agent.q2.parameters()]
    critic_opt = torch.optim.Adam(critic_params, lr=3e-3, eps=1e-10)
    actor_opt = torch.optim.Adam(agent.actor.parameters(), lr=1e-3, eps=1e-10)
    with tensorprobe.capture(agent, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            state, action, next_state, reward, terminated, _, noise = (torch.from_numpy(a) for a in sample_buffer(step))
            loss = agent.critic_loss(state, action, next_state, reward, terminated, noise)
            critic_opt.zero_grad()
            loss.backward()
            gnorm = norm(p.grad for p in critic_params)
            critic_opt.step()
            text = f"step {step} loss {loss.item():.8f} gnorm {gnorm:.8f}"
            if step % DELAY == 0:
                actor_loss = agent.actor_loss(state, action)
                actor_opt.zero_grad()
                actor_loss.backward()
                text += f" actor loss {actor_loss.item():.8f} actor gnorm {norm(p.grad for p in agent.actor.parameters()):.8f}"
                actor_opt.step()
                agent.soft_update()
            run.step()
            print(f"{text} wnorm {norm(agent.parameters()):.8f}")


if __name__ == "__main__":
    main()
