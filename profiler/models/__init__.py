"""The table of models. A model is one file with one function, and one line here: knows nothing of torch itself.

The function takes `batch_size` (its default is the model's) and, where it can read a data set, `data_directory`;
its keyword-only parameters are the options. It returns a Workload.
"""

TABLE = {
    "mlp": "profiler.models.mlp:build",
    "mnist-cnn": "profiler.models.mnist_cnn:build",
    "cifar-resnet": "profiler.models.cifar_resnet:build",
    "transformer": "profiler.models.transformer:build",
    "dense-chain": "profiler.models.dense_chain:build",
    "torchvision": "profiler.models.torchvision:build",
    "timm": "profiler.models.timm:build",
    "hf": "profiler.models.hugging_face:build",
    "llama": "profiler.models.llama:build",
    "*": "profiler.models.user:build",
    "_faults": "profiler.models.faults:build",
}

DATA_FILES = (("", "train-images-idx3-ubyte"), ("MNIST/raw", "train-images-idx3-ubyte"))  # one of them in --data
WITHOUT_GPU = {"mnist-cnn": {"channels": 32}}  # smaller defaults of the same architecture
