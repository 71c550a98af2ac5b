"""PPO on a small world of one's own: weights made orthogonal on the GPU, a rollout, advantages, epochs of minibatches."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

device = torch.device("cuda")
num_envs, num_steps, num_observed, num_actions = 4, 32, 8, 3


class Worlds:
    """Points that drift by random walks; an episode ends far away."""

    def reset(self):
        self.state = np.zeros((num_envs, num_observed), dtype=np.float32)
        return self.state

    def step(self, actions):
        drift = np.random.randn(num_envs, num_observed) * (1 + actions[:, None])
        self.state = self.state + drift.astype(np.float32)
        done = np.linalg.norm(self.state, axis=1) > 8
        reward = 1.0 - np.abs(self.state).mean(axis=1)
        self.state[done] = 0
        return self.state, reward, done


def layer(ins, outs, std=np.sqrt(2)):
    made = nn.Linear(ins, outs, device=device)
    nn.init.orthogonal_(made.weight, std)
    nn.init.constant_(made.bias, 0.0)
    return made


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer(num_observed, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(
            layer(num_observed, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, num_actions, 0.01)
        )

    def act(self, x, action=None):
        probabilities = Categorical(logits=self.actor(x))
        action = probabilities.sample() if action is None else action
        return action, probabilities.log_prob(action), probabilities.entropy(), self.critic(x)


worlds, agent = Worlds(), Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
shape = (num_steps, num_envs)
obs = torch.zeros((*shape, num_observed), device=device)
actions, logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(5))
next_obs, next_done = torch.tensor(worlds.reset(), device=device), torch.zeros(num_envs, device=device)
for update in range(2):
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.act(next_obs)
        actions[step], logprobs[step], values[step] = action, logprob, value.flatten()
        state, reward, done = worlds.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).float().to(device)
        next_obs, next_done = torch.tensor(state, device=device), torch.tensor(done, device=device).float()
    with torch.no_grad():
        next_value, last = agent.critic(next_obs).flatten(), 0
        advantages = torch.zeros_like(rewards)
        for t in reversed(range(num_steps)):
            alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
            following = next_value if t == num_steps - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * following * alive - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * alive * last
        returns = advantages + values
    order = np.arange(num_envs * num_steps)
    for _ in range(2):
        np.random.shuffle(order)
        for start in range(0, len(order), 32):
            part = order[start : start + 32]
            _, newlogprob, entropy, newvalue = agent.act(
                obs.reshape(-1, num_observed)[part], actions.long().flatten()[part]
            )
            ratio = (newlogprob - logprobs.flatten()[part]).exp()
            advantage = advantages.flatten()[part]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
            loss = loss - 0.01 * entropy.mean()
            loss = loss + 0.5 * (newvalue.flatten() - returns.flatten()[part]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"update {update}: loss {loss.item():.3f}")
print("max memory allocated", torch.cuda.max_memory_allocated())
