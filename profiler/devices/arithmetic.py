"""Whether a device computes: a product of small whole numbers and its gradient, against arithmetic without torch."""

from __future__ import annotations

import torch

SIZE = 16  # of the matrices; all numbers are whole and below 2**10, so that every kind of float has them exactly


def wrong(device: str) -> str | None:
    """What the device, by torch's name for it, gets wrong; None where every number is right."""
    left = [[(3 * row + column) % 5 - 2 for column in range(SIZE)] for row in range(SIZE)]
    right = [[(row + 2 * column) % 7 - 3 for column in range(SIZE)] for row in range(SIZE)]
    product = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]
    gradient = [[sum(row) for row in right] for _ in left]  # of the product's sum by the left matrix

    weights = torch.tensor(left, dtype=torch.float32, device=device, requires_grad=True)  # (row, inner)
    found = weights @ torch.tensor(right, dtype=torch.float32, device=device)  # (row, column)
    found.sum().backward()
    assert weights.grad is not None, "it is a leaf that needs one"
    count = sum(
        number == expected
        for rows, known in ((found.tolist(), product), (weights.grad.tolist(), gradient))
        for row, wanted in zip(rows, known, strict=True)
        for number, expected in zip(row, wanted, strict=True)
    )
    if count == 2 * SIZE**2:
        return None
    text = f"{count} of {2 * SIZE**2} numbers of a small product and its gradient are right"
    return f"it computes nothing, or nothing right: {text}; its times and gradients mean nothing"
