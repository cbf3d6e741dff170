"""TD3+BC in MindSpore: both critics are one ensemble (weights with a leading axis), targets are plain copies outside the graph."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

STATE, ACTION, HIDDEN, BATCH = 5, 2, 16, 8
MAX_ACTION = 1.5


class Policy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.trunk = nn.SequentialCell(
            nn.Dense(STATE, HIDDEN), nn.LayerNorm([HIDDEN], epsilon=1e-5), nn.ReLU(),
            nn.Dense(HIDDEN, HIDDEN, activation="relu"),
        )
        self.mean = nn.Dense(HIDDEN, ACTION, activation="tanh")

    def construct(self, obs):
        return self.mean(self.trunk(obs)) * MAX_ACTION


class EnsembleDense(nn.Cell):
    """x (members, batch, in) @ weight (members, in, out)."""

    def __init__(self, members, cin, cout):
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((members, cin, cout)), ms.float32))
        self.bias = Parameter(Tensor(np.zeros((members, 1, cout)), ms.float32))

    def construct(self, x):
        return ops.bmm(x, self.weight) + self.bias


class TwinCritic(nn.Cell):
    def __init__(self, members=2):
        super().__init__()
        self.members = members
        sizes = [STATE + ACTION, HIDDEN, HIDDEN, 1]
        self.layers = nn.CellList([EnsembleDense(members, a, b) for a, b in zip(sizes[:-1], sizes[1:])])

    def construct(self, obs, act):
        x = ops.concat((obs, act), axis=1)
        x = ops.stack([x] * self.members)
        for layer in self.layers[:-1]:
            x = ops.elu(layer(x))
        return self.layers[-1](x)[..., 0]  # (members, batch)


class Agent(nn.Cell):
    def __init__(self):
        super().__init__()
        self.policy, self.critic = Policy(), TwinCritic()
        self.policy_old, self.critic_old = Policy(), TwinCritic()
        self.policy_old.set_grad(False)
        self.critic_old.set_grad(False)


class Trainer:
    def __init__(self, agent, gamma=0.97, tau=0.1, sigma=0.2, limit=0.5, delay=2, alpha=2.5):
        self.agent, self.gamma, self.tau, self.delay, self.alpha = agent, gamma, tau, delay, alpha
        self.sigma, self.limit = sigma, limit
        self.critic_params = ParameterTuple(agent.critic.trainable_params())
        self.policy_params = ParameterTuple(agent.policy.trainable_params())
        self.critic_opt = nn.Adam(self.critic_params, learning_rate=3e-3, eps=1e-10)
        self.policy_opt = nn.Adam(self.policy_params, learning_rate=1e-3, eps=1e-10)
        self.critic_grad = ms.value_and_grad(self.critic_loss, None, self.critic_params)
        self.policy_grad = ms.value_and_grad(self.policy_loss, None, self.policy_params)
        self.updates = 0

    def td_target(self, next_obs, reward, done, noise):
        smooth = ops.clip_by_value(noise * (self.sigma * MAX_ACTION), -self.limit, self.limit)
        act = ops.clip_by_value(self.agent.policy_old(next_obs) + smooth, -MAX_ACTION, MAX_ACTION)
        q = self.agent.critic_old(next_obs, act).min(axis=0)
        return ops.where(done > 0, reward, reward + self.gamma * q)

    def critic_loss(self, obs, act, target):
        error = self.agent.critic(obs, act) - target.expand_dims(0)
        return ops.square(error).mean(axis=1).sum()

    def policy_loss(self, obs, act):
        pi = self.agent.policy(obs)
        q = self.agent.critic(obs, pi)[0]
        weight = self.alpha / ops.stop_gradient(ops.abs(q).mean())
        return ops.square(pi - act).mean() - weight * q.mean()

    def polyak(self):
        pairs = ((self.agent.policy, self.agent.policy_old), (self.agent.critic, self.agent.critic_old))
        for new, old in pairs:
            for p, t in zip(new.get_parameters(), old.get_parameters()):
                t.set_data((1 - self.tau) * t + self.tau * p)

    def step(self, batch):
        obs, act, next_obs, reward, terminated, truncated, noise = batch
        done = terminated
        target = self.td_target(next_obs, reward, done, noise)
        loss, grads = self.critic_grad(obs, act, target)
        self.critic_opt(grads)
        result = {"loss": float(loss), "gnorm": norm(grads)}
        if self.updates % self.delay == 0:
            policy_loss, grads = self.policy_grad(obs, act)
            self.policy_opt(grads)
            self.polyak()
            result.update({"actor loss": float(policy_loss), "actor gnorm": norm(grads)})
        self.updates += 1
        return result


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
    return np.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in tensors))


def load(agent):
    sizes = [STATE + ACTION, HIDDEN, HIDDEN, 1]
    w = {}
    for new, old, shape in (("trunk.0", "l1", (HIDDEN, STATE)), ("trunk.3", "l2", (HIDDEN, HIDDEN)), ("mean", "l3", (ACTION, HIDDEN))):
        w[f"policy.{new}.weight"] = initial(f"actor.{old}.weight", shape)
        w[f"policy.{new}.bias"] = initial(f"actor.{old}.bias", shape[:1])
    w["policy.trunk.1.gamma"], w["policy.trunk.1.beta"] = initial("actor.norm.weight", (HIDDEN,)), initial("actor.norm.bias", (HIDDEN,))
    for j, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
        w[f"critic.layers.{j}.weight"] = np.stack([initial(f"q{m}.net.{2 * j}.weight", (b, a)).T for m in (1, 2)])
        w[f"critic.layers.{j}.bias"] = np.stack([initial(f"q{m}.net.{2 * j}.bias", (b,))[None] for m in (1, 2)])
    for name, p in agent.parameters_and_names():
        p.set_data(Tensor(np.ascontiguousarray(w[name.replace("_old", "")])))


def main():
    agent = Agent()
    load(agent)
    trainer = Trainer(agent)
    with tensorprobe.capture(agent, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            result = trainer.step([Tensor(a) for a in sample_buffer(step)])
            run.step()
            result["wnorm"] = norm(agent.get_parameters())
            print(f"step {step} " + " ".join(f"{k} {v:.8f}" for k, v in result.items()))


if __name__ == "__main__":
    main()
