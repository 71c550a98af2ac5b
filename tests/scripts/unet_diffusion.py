"""Learns to take noise out of random images with a small U-Net; samples from the average of its weights."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
T = 100
betas = torch.linspace(1e-4, 0.02, T, device=device)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.temb = nn.Linear(temb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.temb(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, ch=16, temb=64):
        super().__init__()
        self.ch = ch
        self.time = nn.Sequential(nn.Linear(ch, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down1, self.down2 = ResBlock(ch, ch, temb), ResBlock(ch, 2 * ch, temb)
        self.pool = nn.AvgPool2d(2)
        self.mid = ResBlock(2 * ch, 2 * ch, temb)
        self.up2, self.up1 = ResBlock(4 * ch, ch, temb), ResBlock(2 * ch, ch, temb)
        self.out = nn.Sequential(nn.GroupNorm(4, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t):
        half = self.ch // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        args = t[:, None].float() * freqs[None]
        emb = self.time(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))
        h1 = self.down1(self.inp(x), emb)
        h2 = self.down2(self.pool(h1), emb)
        h = self.mid(self.pool(h2), emb)
        h = self.up2(torch.cat([F.interpolate(h, scale_factor=2), h2], 1), emb)
        h = self.up1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), emb)
        return self.out(h)


@torch.no_grad()
def update_ema(ema, net, decay=0.995):
    for a, b in zip(ema.parameters(), net.parameters()):
        a.lerp_(b, 1 - decay)


@torch.no_grad()
def sample(net, n, steps=4):
    x = torch.randn(n, 3, 32, 32, device=device)
    for i in reversed(range(0, T, T // steps)):
        t = torch.full((n,), i, device=device, dtype=torch.long)
        eps = net(x, t)
        a = alphas_cumprod[i]
        x = (x - (1 - a).sqrt() * eps) / a.sqrt()
    return x.clamp(-1, 1)


model = UNet().to(device)
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for _ in range(4):
    x0 = torch.rand(8, 3, 32, 32, device=device) * 2 - 1
    t = torch.randint(0, T, (8,), device=device)
    noise = torch.randn_like(x0)
    a = alphas_cumprod[t][:, None, None, None]
    noisy = a.sqrt() * x0 + (1 - a).sqrt() * noise
    pred = model(noisy, t)
    loss = F.mse_loss(pred, noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_ema(ema, model)
images = sample(ema, 16)
torch.save(ema.state_dict(), "ema.pt")
print("max memory allocated", torch.cuda.max_memory_allocated())
