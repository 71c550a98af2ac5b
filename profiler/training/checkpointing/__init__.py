"""The mechanisms of checkpointing blocks, which strategies are built from."""
