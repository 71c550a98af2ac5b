"""A Transformer that guesses the next word, its weights updated by hand as in the old tutorial."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

ntokens, emsize, nhead, nhid, nlayers, bptt, batch_size = 500, 64, 2, 128, 2, 20, 8
device = torch.device("cuda")


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=200):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(0), :])


class TransformerModel(nn.Transformer):
    def __init__(self):
        super().__init__(d_model=emsize, nhead=nhead, dim_feedforward=nhid, num_encoder_layers=nlayers)
        self.src_mask = None
        self.pos_encoder = PositionalEncoding(emsize)
        self.input_emb = nn.Embedding(ntokens, emsize)
        self.decoder = nn.Linear(emsize, ntokens)

    def forward(self, src):
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = torch.log(torch.tril(torch.ones(len(src), len(src)))).to(src.device)
        src = self.pos_encoder(self.input_emb(src) * math.sqrt(emsize))
        return F.log_softmax(self.decoder(self.encoder(src, mask=self.src_mask)), dim=-1)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


train_data = batchify(torch.randint(ntokens, (8 * 91,)), batch_size)
val_data = batchify(torch.randint(ntokens, (20 * 41,)), 20)
model = TransformerModel().to(device)
criterion = nn.NLLLoss()
lr = 5.0


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, bptt):
            data, targets = get_batch(data_source, i)
            output = model(data).view(-1, ntokens)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


for epoch in range(2):
    model.train()
    for i in range(0, train_data.size(0) - 1, bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        output = model(data).view(-1, ntokens)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-lr)
    val_loss = evaluate(val_data)
    print(f"epoch {epoch} valid loss {val_loss:5.2f}")
    with open("model.pt", "wb") as f:
        torch.save(model, f)
    lr /= 4.0
print("max memory allocated", torch.cuda.max_memory_allocated())
