"""LBFGS as it is and by the strong Wolfe conditions: the loss is evaluated as often as its values ask for."""

import torch
from torch import nn

device = torch.device("cuda")
x, y = torch.randn(256, 64).to(device), torch.randn(256, 8).to(device)
for line_search in (None, "strong_wolfe"):
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8)).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=8, history_size=10, line_search_fn=line_search)
    num = 0

    def closure():
        global num
        num += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(3):
        loss = optimizer.step(closure)
        print(f"{line_search}, step {step}: {loss.item():.4f} after {num} evaluations")
print("max memory allocated", torch.cuda.max_memory_allocated())
