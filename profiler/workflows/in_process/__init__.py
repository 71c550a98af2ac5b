"""A caller's own model: checkpointed, measured and estimated in this process, with torch, and rehearsed in another."""
