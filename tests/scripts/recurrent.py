"""A bidirectional LSTM with CTC loss, as for speech, its weights orthogonal; the lengths are packed."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 64, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.gru = nn.GRU(128, 64, batch_first=True)
        self.head = nn.Linear(64, 29)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.gru(y)[0]).log_softmax(-1).transpose(0, 1)


torch.manual_seed(0)  # of the lengths
net = Net().cuda()
nn.init.orthogonal_(net.head.weight)
optimizer = torch.optim.Adam(net.parameters())
ctc = nn.CTCLoss()
for _ in range(4):
    x, lengths = torch.randn(8, 100, 40).cuda(), torch.randint(60, 101, (8,))
    lengths[0] = 100
    targets = torch.randint(1, 29, (8, 20), dtype=torch.int32)
    loss = ctc(net(x, lengths), targets, lengths.to(torch.int32), torch.full((8,), 20, dtype=torch.int32))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
print(f"max memory allocated {torch.cuda.max_memory_allocated()}")
