"""A U-Net of diffusers learns to take noise out of images: accelerate, bf16, an average of its weights, samples."""

import torch
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=1, mixed_precision="bf16")
model = UNet2DModel(
    sample_size=32,
    layers_per_block=1,
    block_out_channels=(32, 64, 64),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
)
ema_model = EMAModel(model.parameters(), use_ema_warmup=True, model_cls=UNet2DModel, model_config=model.config)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="linear")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)
loader = DataLoader(TensorDataset(torch.rand(48, 3, 32, 32) * 2 - 1), batch_size=8, shuffle=True)
lr_scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=2 * len(loader))
model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, loader, lr_scheduler)
ema_model.to(accelerator.device)
for _ in range(2):
    model.train()
    for (clean,) in loader:
        noise = torch.randn_like(clean)
        timesteps = torch.randint(0, 1000, (clean.shape[0],), device=clean.device).long()
        noisy = noise_scheduler.add_noise(clean, noise, timesteps)
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(noisy, timesteps).sample.float(), noise.float())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        ema_model.step(model.parameters())
        print(f"loss {loss.detach().item():.4f}, lr {lr_scheduler.get_last_lr()[0]:.2e}")
unet = accelerator.unwrap_model(model)
ema_model.store(unet.parameters())
ema_model.copy_to(unet.parameters())
pipeline = DDPMPipeline(unet=unet, scheduler=noise_scheduler)
images = pipeline(batch_size=4, num_inference_steps=20, output_type="np").images
print("images", (images * 255).round().astype("uint8").shape)
ema_model.restore(unet.parameters())
pipeline.save_pretrained("ddpm")
accelerator.end_training()
print("max memory allocated", torch.cuda.max_memory_allocated())
