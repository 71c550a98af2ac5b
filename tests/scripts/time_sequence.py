"""Learns waves by two LSTM cells in double precision and LBFGS, then predicts how they go on."""

import argparse

import torch
from torch import nn, optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Sequence(nn.Module):
    def __init__(self, hidden=51):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)
        self.unused = nn.Linear(1, 1)  # has no gradient

    def forward(self, input, future=0):
        outputs = []
        h_t, c_t, h_t2, c_t2 = input.new_zeros(4, input.size(0), self.hidden).unbind(0)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--future", type=int, default=40)
parser.add_argument("--search", help="of LBFGS: strong_wolfe")
opt = parser.parse_args()
torch.manual_seed(0)
data = torch.sin((torch.arange(21.0) + torch.rand(12, 1) * 20).double() / 4)
input, target = data[3:, :-1].to(device), data[3:, 1:].to(device)
test_input, test_target = data[:3, :-1].to(device), data[:3, 1:].to(device)
seq = Sequence().double().to(device)
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8, line_search_fn=opt.search)
for i in range(opt.steps):

    def closure():
        optimizer.zero_grad()
        out = seq(input)
        loss = criterion(out, target)
        loss.backward()
        return loss

    optimizer.step(closure)
    (state,) = optimizer.state.values()
    print(f"step {i}: {state['n_iter']} iterations, {len(state['old_dirs'])} kept")
    with torch.no_grad():
        pred = seq(test_input, future=opt.future)
        loss = criterion(pred[:, : -opt.future], test_target)
        print(f"step {i}: test loss {loss.item():.6f}")
        y = pred.cpu().numpy()
print("max memory allocated", torch.cuda.max_memory_allocated())
