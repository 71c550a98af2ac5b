"""Files of MNIST's format."""

import struct


def write_mnist(folder, count: int) -> None:
    """Real IDX files: a magic number with type and rank, the sizes, the bytes."""
    folder.mkdir(parents=True)
    for kind in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + bytes(i % 256 for i in range(count * 28 * 28))
        labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(labels)
