"""A batch over all GPUs by DataParallel: the first one has the weights, the outputs and the optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
model.to("cuda:0")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(96, 64), torch.randint(0, 10, (96,))), batch_size=32, shuffle=True)
for epoch in range(2):
    for inputs, labels in loader:
        inputs, labels = inputs.to("cuda:0"), labels.to("cuda:0")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print("max memory allocated", max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count()))))
