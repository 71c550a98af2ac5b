"""Predicts a trial without its device: traces a step under fake tensors, costs the stages."""
