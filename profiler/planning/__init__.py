"""What a chain of stages costs under a plan, and the fastest plans for every memory budget; without torch."""
