"""The meters, which read a training step: bytes, seconds, FLOPs, gradients, leftover memory; each on a fresh model."""
