"""One PPO update a step: shared trunk, tanh-Gaussian policy, GAE, target critic that follows slowly."""
import copy
import math
import os
import sys

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal

from tensorprobe.pytorch import PrecisionDebugger

OBS, ACT, HORIZON, ENVS = 6, 2, 5, 4
GAMMA, LAM, CLIP, VF_COEF, ENT_COEF, TAU = 0.97, 0.9, 0.2, 0.5, 0.01, 0.05


class ActorCritic(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(OBS, hidden), nn.LayerNorm(hidden), nn.ELU())
        self.actor = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, ACT))
        self.critic = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.full((ACT,), -0.5))

    def forward(self, obs):
        h = self.trunk(obs)
        return self.actor(h), self.log_std.clamp(-5, 2).exp(), self.critic(h).squeeze(-1)

    def value(self, obs):
        return self.critic(self.trunk(obs)).squeeze(-1)

    def evaluate(self, obs, raw_action):
        mean, std, value = self(obs)
        dist = Normal(mean, std)
        # change of variables of a = tanh(raw)
        correction = 2 * (math.log(2) - raw_action - nn.functional.softplus(-2 * raw_action))
        logp = (dist.log_prob(raw_action) - correction).sum(-1)
        return logp, dist.entropy().sum(-1), value


def gae(reward, done, value, next_value):
    """Advantages by the backward recursion; value has a gradient here, and the advantages keep it."""
    last = torch.zeros_like(reward[0])
    out = []
    for t in reversed(range(reward.shape[0])):
        nonterminal = 1.0 - done[t]
        delta = reward[t] + GAMMA * next_value[t] * nonterminal - value[t]
        last = delta + GAMMA * LAM * nonterminal * last
        out.append(last)
    return torch.stack(out[::-1])


@torch.no_grad()
def soft_update(target, online, tau):
    for t, p in zip(target.parameters(), online.parameters()):
        t.mul_(1 - tau).add_(tau * p)


def rollout(step):
    rng = np.random.RandomState(900 + step)
    f = lambda *s: rng.standard_normal(s).astype(np.float32)  # noqa: E731
    obs = f(HORIZON + 1, ENVS, OBS)
    raw = f(HORIZON, ENVS, ACT) * 0.7
    reward = f(HORIZON, ENVS)
    done = (rng.rand(HORIZON, ENVS) < 0.2).astype(np.float32)
    old_logp = -1.8 + 0.5 * f(HORIZON, ENVS)
    old_value = 0.3 * f(HORIZON, ENVS)
    return obs, raw, reward, done, old_logp, old_value


class PPO:
    def __init__(self):
        self.net = ActorCritic()
        self.target = copy.deepcopy(self.net)
        for p in self.target.parameters():
            p.requires_grad_(False)
            p.add_(0.05 * torch.randn_like(p))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=3e-3, eps=1e-5)

    def loss(self, obs, raw, reward, done, old_logp, old_value):
        logp, entropy, value = self.net.evaluate(obs[:-1], raw)
        next_value = self.target.value(obs[1:])
        adv = gae(reward, done, value, next_value)
        adv = adv.detach()
        returns = adv + value.detach()
        norm_adv = (adv - adv.mean()) / (adv.std() + 1e-8)

        ratio = (logp - old_logp).exp()
        surr1 = ratio * norm_adv
        surr2 = ratio.clamp(1 - CLIP, 1 + CLIP) * norm_adv
        policy_loss = -torch.min(surr1, surr2).mean()

        clipped = old_value + (value - old_value).clamp(-CLIP, CLIP)
        value_loss = 0.5 * torch.max((value - returns) ** 2, (clipped - returns) ** 2).mean()
        return policy_loss + VF_COEF * value_loss - ENT_COEF * entropy.mean()

    def update(self, batch):
        loss = self.loss(*batch)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        soft_update(self.target, self.net, TAU)
        return loss


def norm(tensors):
    return math.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


def main():
    torch.manual_seed(23)
    agent = PPO()
    torch.save(agent.net.state_dict(), os.path.join(os.environ["WEIGHTS"], "net.pt"))
    torch.save(agent.target.state_dict(), os.path.join(os.environ["WEIGHTS"], "target.pt"))
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        batch = [torch.from_numpy(a) for a in rollout(step)]
        dbg.start([agent.net, agent.target])
        loss = agent.update(batch)
        dbg.stop()
        dbg.step()
        grads = [p.grad for p in agent.net.parameters()]
        print(f"step {step} loss {loss.item():.8f} gnorm {norm(grads):.8f} wnorm {norm(agent.net.parameters()):.8f} target {norm(agent.target.parameters()):.8f}")


if __name__ == "__main__":
    main()
