"""The same trial without the device: a step traced under fake tensors, the allocator replayed, costs of stages."""
