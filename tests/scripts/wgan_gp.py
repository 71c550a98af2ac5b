"""A Wasserstein GAN whose critic is kept smooth by the gradient of its gradient; three steps of it to one of the other."""

import torch
from torch import autograd, nn

batch_size, latent_dim, img_shape, n_critic, lambda_gp = 16, 32, (1, 16, 16), 3, 10
device = torch.device("cuda")


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(latent_dim, 128), nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(128, 256), nn.BatchNorm1d(256, 0.8), nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(256, 256), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z):
        return self.model(z).view(z.size(0), *img_shape)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(32 * 4 * 4, 1),
        )  # fmt: skip

    def forward(self, img):
        return self.model(img)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=device)
    between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    validity = critic(between)
    (gradients,) = autograd.grad(
        outputs=validity,
        inputs=between,
        grad_outputs=torch.ones_like(validity),
        create_graph=True,
        retain_graph=True,
    )
    return ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


generator, critic = Generator().to(device), Critic().to(device)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
for i in range(6):
    real_imgs = torch.rand(batch_size, *img_shape).to(device)
    optimizer_D.zero_grad()
    z = torch.randn(batch_size, latent_dim, device=device)
    fake_imgs = generator(z).detach()
    penalty = gradient_penalty(critic, real_imgs, fake_imgs)
    d_loss = -critic(real_imgs).mean() + critic(fake_imgs).mean() + lambda_gp * penalty
    d_loss.backward()
    optimizer_D.step()
    if i % n_critic == 0:
        optimizer_G.zero_grad()
        g_loss = -critic(generator(z)).mean()
        g_loss.backward()
        optimizer_G.step()
        print(f"[{i}] D loss {d_loss.item():.4f}, G loss {g_loss.item():.4f}")
torch.save({"G": generator.state_dict(), "D": critic.state_dict()}, "wgan.pt")
print("max memory allocated", torch.cuda.max_memory_allocated())
