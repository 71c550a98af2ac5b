"""Whether a device computes: a product of small whole numbers and its gradient, checked by Python's own arithmetic."""

from __future__ import annotations

import torch

SIZE = 16  # of the matrices; all numbers are whole and below 2**10, so that every kind of float has them exactly


def wrong_arithmetic(device: str) -> str | None:
    """A sentence on what the device gets wrong; None where every number is right. `device` is torch's name for it."""
    left = [[(3 * row + column) % 5 - 2 for column in range(SIZE)] for row in range(SIZE)]
    right = [[(row + 2 * column) % 7 - 3 for column in range(SIZE)] for row in range(SIZE)]
    product = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]
    gradient = [[sum(row) for row in right] for _ in left]  # of the product's sum by the left matrix

    weights = torch.tensor(left, dtype=torch.float32, device=device, requires_grad=True)  # (row, inner)
    computed = weights @ torch.tensor(right, dtype=torch.float32, device=device)  # (row, column)
    computed.sum().backward()
    assert weights.grad is not None, "it is a leaf that needs one"
    num_right = sum(
        number == expected
        for matrix, expected_matrix in ((computed.tolist(), product), (weights.grad.tolist(), gradient))
        for row, expected_row in zip(matrix, expected_matrix, strict=True)
        for number, expected in zip(row, expected_row, strict=True)
    )
    if num_right == 2 * SIZE**2:
        return None
    text = f"{num_right} of {2 * SIZE**2} numbers of a small product and its gradient are right"
    return f"it computes nothing, or nothing right: {text}; its times and gradients mean nothing"
