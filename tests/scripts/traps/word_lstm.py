"""An LSTM that guesses the next word, its state carried from piece to piece, updated by hand as in the old tutorial."""

import torch
from torch import nn

ntokens, emsize, nhid, nlayers, bptt, batch_size = 500, 64, 64, 2, 20, 8
device = torch.device("cuda")


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntokens, emsize)
        self.rnn = nn.LSTM(emsize, nhid, nlayers, dropout=0.2)
        self.decoder = nn.Linear(nhid, ntokens)
        self.decoder.weight = self.encoder.weight

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(output)).view(-1, ntokens), dim=1), hidden

    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(nlayers, size, nhid), weight.new_zeros(nlayers, size, nhid)


def repackage(hidden):
    return tuple(state.detach() for state in hidden)


data = torch.randint(ntokens, (91, batch_size)).to(device)
model = RNNModel().to(device)
lr = 20.0
for epoch in range(2):
    model.train()
    hidden = model.init_hidden(batch_size)
    for i in range(0, len(data) - 1, bptt):
        words, targets = data[i : i + bptt], data[i + 1 : i + 1 + bptt].reshape(-1)
        model.zero_grad()
        hidden = repackage(hidden)
        output, hidden = model(words[: len(targets) // batch_size], hidden)
        loss = nn.functional.nll_loss(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    model.eval()
    with torch.no_grad():
        output, _ = model(data[:-1], model.init_hidden(batch_size))
        print(f"epoch {epoch} loss {nn.functional.nll_loss(output, data[1:].reshape(-1)).item():.2f}")
    torch.save(model, "model.pt")
    lr /= 4.0
print("max memory allocated", torch.cuda.max_memory_allocated())
