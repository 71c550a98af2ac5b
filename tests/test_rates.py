"""The known GPUs: their files, their words, and what is refused."""

import pytest

from profiler.core import gpu_specs
from profiler.core.trace_data import host_rate

SOLD = {  # GiB, as the vendor writes it on the box
    "t4": 16, "v100-16": 16, "v100-32": 32, "a10g": 24, "a100-40": 40, "a100-80": 80, "l4": 24, "l40s": 48,
    "h100": 80, "h200": 141, "b200": 180, "rtx-3090": 24, "rtx-4090": 24, "rtx-5090": 32,
    "rtx-3060": 12, "rtx-2080-ti": 11, "rtx-3080": 10, "rtx-4060": 8, "rtx-4070": 12,
}  # fmt: skip
SMALL = """
name = "one"
source = "nobody"
memory_bytes = 5
bandwidth = 2e9
compute_capability = [8, 0]
[flops]
fp32 = 1e12
fp16 = 8e12
"""


# compute capability: threads resident on a multiprocessor, its shared memory in KiB. Source: CUDA C++ Programming Guide
RESIDENT = {
    (7, 0): (2048, 96), (7, 5): (1024, 64), (8, 0): (2048, 164), (8, 6): (1536, 100), (8, 9): (1536, 100),
    (9, 0): (2048, 228), (10, 0): (2048, 228), (12, 0): (1536, 100),
}  # fmt: skip


@pytest.mark.parametrize("word", SOLD)
def test_a_gpu_offers_a_little_less_memory_than_is_sold_and_what_its_compute_capability_allows(word):
    gpu = gpu_specs.find(word)

    threads, kib = RESIDENT[gpu.compute_capability]
    assert 0.9 * SOLD[word] <= gpu.memory_bytes / 2**30 < SOLD[word]
    assert host_rate(gpu) > 0
    is_large = gpu.compute_capability[0] >= 9  # from Hopper on cuBLAS takes 32 MiB, before 2 x 4096 KiB + 8 x 16 KiB
    assert gpu_specs.workspace_bytes(gpu) == (33_554_432 if is_large else 8_519_680)
    assert (gpu.chip.threads_per_multiprocessor, gpu.chip.shared_memory_bytes) == (threads, kib * 1024)


def test_a_user_adds_a_gpu_and_replaces_one_by_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "gcprof" / "devices"
    own.mkdir(parents=True)
    for name in ("my-gpu", "t4", "Not a word"):
        (own / f"{name}.toml").write_text(SMALL)

    assert set(gpu_specs.names()) == {*SOLD, "my-gpu"}
    assert gpu_specs.find("my-gpu").memory_bytes == gpu_specs.find("t4").memory_bytes == 5
    assert gpu_specs.find("h100").memory_bytes > 5
    assert [host_rate(gpu_specs.find(word)) for word in ("h100", "my-gpu")] == pytest.approx([0.8 * 63e9, 0])
