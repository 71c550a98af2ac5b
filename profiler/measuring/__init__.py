"""Trial -> Record in this process: the only room where model, strategy, device and meters meet."""
