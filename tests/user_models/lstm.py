"""A language model with an LSTM, whose output is a tuple."""

import torch
from torch import nn


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.decode = nn.Linear(hidden, vocab)

    def forward(self, text):
        output, (h, c) = self.lstm(self.embed(text))
        return self.decode(output)


def char_rnn(batch_size=4, hidden=16):
    text = torch.randint(30, (batch_size, 21))
    criterion = nn.CrossEntropyLoss()
    return (
        CharRNN(30, hidden),
        (text[:, :-1], text[:, 1:]),
        lambda logits, y: criterion(logits.flatten(0, 1), y.flatten()),
    )
