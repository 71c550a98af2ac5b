"""What reads a step: bytes, seconds, FLOPs, gradients, what is left behind; each on a model of its own."""
