"""The table of models: a function each, and one line here, which imports no torch.

The function takes `batch_size` (its default is the model's) and, where it can read a data set, `data_directory`;
its keyword-only parameters are the options. It returns a Workload.
"""

TABLE = {
    "mlp": "profiler.training.models.built_in:mlp",
    "mnist-cnn": "profiler.training.models.built_in:mnist_cnn",
    "cifar-resnet": "profiler.training.models.built_in:cifar_resnet",
    "transformer": "profiler.training.models.built_in:transformer",
    "dense-chain": "profiler.training.models.built_in:dense_chain",
    "torchvision": "profiler.training.models.torchvision:build",
    "timm": "profiler.training.models.timm:build",
    "hf": "profiler.training.models.hugging_face:build",
    "llama": "profiler.training.models.hugging_face:llama",
    "*": "profiler.training.models.user:build",
}

DATA_FILES = (("", "train-images-idx3-ubyte"), ("MNIST/raw", "train-images-idx3-ubyte"))  # one of them in --data
CHAINS = ("mlp", "mnist-cnn", "cifar-resnet", "dense-chain")  # sequences of modules, any run of which can be a segment
WITHOUT_GPU = {"mnist-cnn": {"channels": 32}}  # smaller defaults of the same architecture


def imports(name: str) -> list[str]:
    """Return the modules that building a model of the table imports, which cost seconds; none of a user's code."""
    kind, _, family = name.partition(":")
    module = TABLE.get(kind, "").partition(":")[0]
    own = f"transformers.models.{family.replace('-', '_')}.modeling_{family.replace('-', '_')}" if kind == "hf" else ""
    return [word for word in (module, own) if word]
