"""Predicts a trial without its device: traces a step under fake tensors, replays the allocator, costs the stages."""
