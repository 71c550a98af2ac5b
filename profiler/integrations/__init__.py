"""Other people's tools: experiment trackers, and tests with pytest."""
