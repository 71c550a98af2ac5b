"""A small Llama whose Adam keeps 8 bits of its state, by bitsandbytes."""

import bitsandbytes
import torch
from small_text import llama

model = llama().cuda()
optimizer = bitsandbytes.optim.Adam8bit(model.parameters(), lr=1e-4, min_8bit_size=1024)
for step in range(3):
    tokens = torch.randint(5, 255, (8, 64)).cuda()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
print("max memory allocated", torch.cuda.max_memory_allocated())
