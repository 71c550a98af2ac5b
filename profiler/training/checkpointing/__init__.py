"""How blocks are checkpointed: what strategies are made of."""
