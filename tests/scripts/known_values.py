"""Operators on values that come from the host, each with what it makes: a GPU that computes nothing has to say the same."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.tensor([3, 1, 2, 0, 5, 3, 1], device=device)
f = torch.linspace(0, 1, 5, device=device)
mask = x > 1
unique, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
changed = x.clone()
changed[mask] = 9
changed[2:4] = 7
parts = torch.empty(5, dtype=torch.long, device=device)
parts[:2] = x[:2]
parts[2:] = 4
rows = torch.nn.Embedding(9, 2, sparse=True, device=device)
rows(x).sum().backward()
pairs = torch.sparse_coo_tensor(torch.tensor([[0, 2, 0], [3, 1, 3]]), torch.ones(3), (4, 4)).to(device)
places = torch.zeros(6, dtype=torch.long, device=device)
FOUND = {
    "arithmetic": x * 2 + 1,
    "mask": mask,
    "indexed by a mask": x[mask],
    "floats by a mask": f[f > 0.4],
    "nonzero": mask.nonzero(),
    "masked_select": x.masked_select(mask),
    "unique, sorted": unique,
    "inverse": inverse,
    "counts": counts,
    "consecutive": torch.unique_consecutive(x),
    "bincount": torch.bincount(x),
    "repeated": torch.arange(7, device=device).repeat_interleave(x),
    "one hot": torch.nn.functional.one_hot(x),
    "changed": changed,
    "parts": parts,
    "cat": torch.cat([x, changed]),
    "topk": x.float().topk(2)[0],
    "cumsum": x.cumsum(0),
    "scattered": places.scatter_add_(0, x.clamp(max=5), torch.ones_like(x)),
    "isin": torch.isin(x, torch.tensor([1, 2], device=device)),
    "gather": x.gather(0, torch.tensor([1, 1], device=device)),
    "by a list": x[[0, 2]],
    "sum": x.sum().item(),
    "any": bool((x == 5).any()),
    "unequal": torch.equal(x, changed),
    "many": torch.arange(300_000, device=device).sum().item(),
    "precision": f.to(torch.float16).double(),
    "padded": torch.nn.utils.rnn.pad_sequence([x, x[:2]]),
    "rows that were read": rows.weight.grad.coalesce().indices(),
    "pairs the other way": pairs.t().coalesce().indices(),
    "their product": torch.mm(pairs, torch.ones(4, 5, device=device)).shape,
    "histogram": torch.histc(f, 4),
    "array": x.cpu().numpy().sum(),
}
for name, made in FOUND.items():
    print(f"{name}: {made.tolist() if isinstance(made, torch.Tensor) else made}")
