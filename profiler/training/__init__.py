"""A model ready to train: its workload and blocks, and the tables of models, strategies, optimizers, distribution."""
