"""A user's own model checkpointed, measured, predicted, explained and planned in the caller's process, with torch."""
