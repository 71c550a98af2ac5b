"""A user's own training command, run as it is on hollow GPUs and watched; nothing of the user's is overwritten."""
