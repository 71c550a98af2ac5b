"""Every strategy of the catalogue, with the options that tests run it with."""

EVERY = {
    "none": ["none"],
    "segments": ["segments:k=1", "segments:k=2", "segments:k=4", "segments:k=3,split=balanced"],
    "sqrt": ["sqrt"],
    "all": ["all"],
    "every": ["every:k=2", "every:k=3"],
    "first": ["first:n=2"],
    "recursive": ["recursive"],
    "from-start": ["from-start"],
    "selective": ["selective:save=matmul", "selective:save=conv", "selective:save=attention", "selective:save=mm+relu"],
    "offload": ["offload"],
    "plan": ["plan"],  # a file is written for each model
    "own": ["own"],
    "hf": [],  # on models of Hugging Face, in test_families
    "compile-budget": [],  # other kernels: equal but for rounding, in test_equality
    "_planted": [],  # wrong on purpose, in test_equality
}
