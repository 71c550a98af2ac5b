"""A small GPT in the manner of minGPT: learns to add numbers (`add`) or to write characters (`chars`), and samples.

Adding is scored every few steps by generated digits, and the best weights are kept; characters are sampled at the end.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

task = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
DIGITS = 2


class Sums(Dataset):
    """Rows of digits a, b and a + b reversed; what is asked is not learned."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        a, b = divmod(self.numbers[index], 10**DIGITS)
        text = f"{a:0{DIGITS}d}{b:0{DIGITS}d}" + f"{a + b:0{DIGITS + 1}d}"[::-1]
        row = torch.tensor([int(letter) for letter in text])
        x, y = row[:-1], row[1:].clone()
        y[: 2 * DIGITS - 1] = -1
        return x, y


class Characters(Dataset):
    def __init__(self, text, block_size):
        letters = sorted(set(text))
        self.codes = {letter: code for code, letter in enumerate(letters)}
        self.letters, self.text, self.block_size = letters, text, block_size

    def __len__(self):
        return len(self.text) - self.block_size

    def __getitem__(self, index):
        row = torch.tensor([self.codes[letter] for letter in self.text[index : index + self.block_size + 1]])
        return row[:-1], row[1:]


class Block(nn.Module):
    def __init__(self, dim, heads, block_size):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.1))
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(c, dim=2)
        )
        att = (q @ k.transpose(-2, -1)) / (c // self.heads) ** 0.5
        att = att.masked_fill(self.bias[:t, :t] == 0, float("-inf")).softmax(-1)
        x = x + self.c_proj((att @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, dim=48, heads=3, layers=3):
        super().__init__()
        self.block_size = block_size
        self.wte, self.wpe = nn.Embedding(vocab_size, dim), nn.Embedding(block_size, dim)
        self.h = nn.ModuleList([Block(dim, heads, block_size) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, count, do_sample=False, top_k=None):
        for _ in range(count):
            logits, _ = self(idx[:, -self.block_size :])
            logits = logits[:, -1]
            if top_k is not None:
                v, _ = torch.topk(logits, top_k)
                logits[logits < v[:, [-1]]] = -float("inf")
            probs = F.softmax(logits, dim=-1)
            following = torch.multinomial(probs, 1) if do_sample else torch.topk(probs, 1, dim=-1)[1]
            idx = torch.cat((idx, following), dim=1)
        return idx


def right_sums(model, numbers):
    loader, results = DataLoader(Sums(numbers), batch_size=50), []
    factors = torch.tensor([[10**i for i in range(DIGITS + 1)][::-1]], device=device)
    for x, _ in loader:
        x = x.to(device)
        asked = x[:, : 2 * DIGITS]
        given = model.generate(asked, DIGITS + 1)[:, -(DIGITS + 1) :].flip(1)
        a, b = ((asked[:, part] * factors[:, 1:]).sum(1) for part in (slice(DIGITS), slice(DIGITS, None)))
        right = ((given * factors).sum(1) == a + b).cpu()
        results += [int(right[i]) for i in range(x.size(0))]
    return sum(results)


if task == "add":
    order = torch.randperm(10 ** (2 * DIGITS)).tolist()
    held_out, data = order[:150], Sums(order[150:])
    model = GPT(10, 3 * DIGITS).to(device)
else:
    letters = [chr(97 + code) for code in torch.randint(26, (2000,)).tolist()]
    data = Characters("".join(letters), 64)
    model = GPT(len(data.letters), 64).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
loader = iter(DataLoader(data, batch_size=32, sampler=RandomSampler(data, replacement=True, num_samples=10**6)))
top_score = 0
for step in range(12):
    x, y = (part.to(device) for part in next(loader))
    model.train()
    _, loss = model(x, y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 4 == 0:
        print(f"step {step}: train loss {loss.item():.5f}")
    if task == "add" and step % 6 == 5:
        model.eval()
        score = right_sums(model, held_out)
        if score > top_score:
            top_score = score
            torch.save(model.state_dict(), "model.pt")
if task == "chars":
    model.eval()
    start = torch.tensor([[data.codes["a"]]], device=device)
    completion = model.generate(start, 40, do_sample=True, top_k=10)[0]
    print("".join(data.letters[int(code)] for code in completion))
print("max memory allocated", torch.cuda.max_memory_allocated())
