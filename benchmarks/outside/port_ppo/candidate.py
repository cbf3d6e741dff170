"""PPO with a target critic, in MindSpore: the loss is a cell, the agent a training cell."""
import math
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental.optim import AdamW

from tensorprobe import migrator
from tensorprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

OBS, ACT, HORIZON, ENVS = 6, 2, 5, 4


class ActorCritic(nn.Cell):
    def __init__(self, hidden=16):
        super().__init__()
        self.trunk = nn.SequentialCell(nn.Dense(OBS, hidden), nn.LayerNorm((hidden,), epsilon=1e-5), nn.ELU())
        self.actor = nn.SequentialCell(nn.Dense(hidden, hidden, activation="relu"), nn.Dense(hidden, ACT))
        self.critic = nn.SequentialCell(nn.Dense(hidden, hidden, activation="relu"), nn.Dense(hidden, 1))
        self.log_std = Parameter(Tensor(np.full(ACT, -0.5), ms.float32), name="log_std")

    def construct(self, obs):
        h = self.trunk(obs)
        std = ops.exp(ops.clip_by_value(self.log_std, -5.0, 2.0))
        return self.actor(h), std, self.critic(h).squeeze(-1)

    def value(self, obs):
        return self.critic(self.trunk(obs)).squeeze(-1)


def gaussian_log_prob(x, mean, std):
    return -0.5 * ops.square((x - mean) / std) - ops.log(std) - 0.5 * math.log(2 * math.pi)


def gaussian_entropy(std):
    return ops.log(std) + 0.5 + 0.5 * math.log(2 * math.pi)


class PPOLoss(nn.Cell):
    def __init__(self, net, target, gamma=0.97, lam=0.9, clip=0.2, vf_coef=0.5, ent_coef=0.01):
        super().__init__(auto_prefix=False)
        self.net, self.target = net, target
        self.gamma, self.lam, self.clip, self.vf_coef, self.ent_coef = gamma, lam, clip, vf_coef, ent_coef
        self.minimum, self.maximum = ops.Minimum(), ops.Maximum()
        self.softplus = ops.Softplus()

    def advantages(self, reward, done, value, next_value):
        not_done = 1 - done
        delta = reward + self.gamma * next_value * not_done - value
        adv = delta[-1]
        result = [adv]
        for t in range(reward.shape[0] - 2, -1, -1):
            adv = delta[t] + self.gamma * self.lam * not_done[t] * adv
            result.insert(0, adv)
        return ops.stack(result, axis=0)

    def construct(self, obs, raw_action, reward, done, old_logp, old_value):
        mean, std, value = self.net(obs[:-1])
        logp = gaussian_log_prob(raw_action, mean, std)
        logp = logp - 2 * (math.log(2) - raw_action - self.softplus(-2 * raw_action))
        logp = logp.sum(axis=-1)
        entropy = gaussian_entropy(std).sum(axis=-1)

        adv = self.advantages(reward, done, value, self.target.value(obs[1:]))
        adv = ops.stop_gradient(adv)
        returns = adv + ops.stop_gradient(value)
        norm_adv = (adv - adv.mean()) / (ops.std(adv, ddof=1) + 1e-8)

        ratio = ops.exp(logp - old_logp)
        clipped_ratio = ops.clip_by_value(ratio, 1 - self.clip, 1 + self.clip)
        policy_loss = -self.minimum(ratio * norm_adv, clipped_ratio * norm_adv).mean()

        clipped_value = old_value + ops.clip_by_value(value - old_value, -self.clip, self.clip)
        value_loss = self.maximum(ops.square(value - returns), ops.square(clipped_value - returns)).mean() * 0.5
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy


class SoftUpdate(nn.Cell):
    def __init__(self, target, online, tau=0.05):
        super().__init__(auto_prefix=False)
        self.pairs = list(zip(target.get_parameters(), online.get_parameters()))
        self.tau = tau

    def construct(self):
        for t, p in self.pairs:
            ops.assign(t, (1 - self.tau) * t + self.tau * p)


class Trainer:
    def __init__(self, net, target):
        self.loss_fn = PPOLoss(net, target)
        # AdamW without decay: its epsilon is added where PyTorch adds it, that of Adam is not
        self.optimizer = AdamW(net.trainable_params(), lr=3e-3, eps=1e-5, weight_decay=0.0)
        self.grad_fn = ms.value_and_grad(self.loss_fn, None, self.optimizer.parameters)
        self.soft_update = SoftUpdate(target, net)

    def update(self, batch):
        loss, grads = self.grad_fn(*batch)
        self.optimizer(grads)
        self.soft_update()
        return loss, grads


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


def norm(tensors):
    return math.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in tensors))


def main():
    net, target = ActorCritic(), ActorCritic()
    migrator.convert_weight(os.path.join(os.environ["WEIGHTS"], "net.pt"), net, load=True)
    migrator.convert_weight(os.path.join(os.environ["WEIGHTS"], "target.pt"), target, load=True)
    for p in target.get_parameters():
        p.requires_grad = False
    trainer = Trainer(net, target)
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        batch = [Tensor(a) for a in rollout(step)]
        dbg.start([net, target])
        loss, grads = trainer.update(batch)
        dbg.stop()
        dbg.step()
        print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {norm(grads):.8f} wnorm {norm(net.get_parameters()):.8f} target {norm(target.get_parameters()):.8f}")


if __name__ == "__main__":
    main()
