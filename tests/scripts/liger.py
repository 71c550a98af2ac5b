"""A small Llama with Liger's Triton kernels, its loss computed with the last layer at once."""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama

apply_liger_kernel_to_llama(rope=True, swiglu=True, rms_norm=True, fused_linear_cross_entropy=True)
from small_text import llama  # noqa: E402  after the kernels are in place

model = llama().to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    tokens = torch.randint(5, 255, (4, 128)).cuda()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
print("max memory allocated", torch.cuda.max_memory_allocated())
