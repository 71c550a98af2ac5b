"""Other people's tools: experiment trackers, and callbacks for trainers."""
