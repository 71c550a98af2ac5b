"""What a series of samples says of itself: pure arithmetic, knows nothing of torch, of devices or of screens."""
