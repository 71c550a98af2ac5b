"""The known GPUs and their files; estimated seconds, by arithmetic on a GPU of round numbers."""

import pytest

from profiler.core import gpu_specs
from profiler.core.gpu_specs import Flops, Rates
from profiler.core.trace_data import Operator, host_rate, roofline_seconds, scaled, stated_error

LAUNCH = 3e-6
ROUND = Rates(
    name="round",
    source="nobody",
    memory_bytes=2**30,
    bandwidth=1e11,  # 8e10 bytes a second are reached
    flops=Flops(fp32=1e12, fp16=8e12, bf16=4e12),  # 8e11, 6.4e12 and 3.2e12 are
    compute_capability=(8, 0),
)


def forward(name: str, *, flops: int = 0, moved: int = 0) -> tuple[Operator, ...]:
    return (Operator(name, "", "forward", flops, moved),)


PRODUCT = forward("aten.mm", flops=2 * 2000**3, moved=3 * 2000**2 * 4)  # of square matrices in fp32


@pytest.mark.parametrize(
    ("trace", "precision", "expected"),
    [
        (PRODUCT, "fp32", 16e9 / 8e11 + LAUNCH),  # 20 ms; its 48 MB would take 0.6 ms
        (PRODUCT, "fp16", 16e9 / 6.4e12 + LAUNCH),
        (PRODUCT, "amp-bf16", 16e9 / 3.2e12 + LAUNCH),
        (forward("aten.add.Tensor", moved=8 * 10**8), "fp32", 0.01 + LAUNCH),
        (forward("aten.add.Tensor", moved=8) * 1000, "fp32", 1000 * (8 / 8e10 + LAUNCH)),
        (forward("aten.view"), "fp32", 0),  # what starts no kernel costs nothing
        (forward("aten._unsafe_view", moved=1000), "fp32", 0),
        (forward("aten.empty_like", moved=1000), "fp32", 0),
        (forward("aten._local_scalar_dense", moved=4), "fp32", 0),
    ],
)
def test_an_operator_takes_as_long_as_its_arithmetic_or_its_traffic_and_a_launch(trace, precision, expected):
    assert roofline_seconds(trace, ROUND, precision)["step"] == pytest.approx(expected)


def test_each_phase_has_its_own_and_recomputing_is_part_of_the_backward():
    moved = {"zero": 1, "forward": 2, "recompute": 3, "backward": 4, "optimizer": 5, "end": 6}  # in 80 MB
    trace = [Operator("aten.add_", "", phase, 0, size * 8 * 10**7) for phase, size in moved.items()]

    found = roofline_seconds(trace, ROUND, "fp32")

    assert found == pytest.approx(
        {
            "forward": 0.002 + LAUNCH,
            "backward": 0.003 + 0.004 + 2 * LAUNCH,
            "optimizer": 0.005 + LAUNCH,
            "step": 0.015 + 5 * LAUNCH,  # with zeroing, without what comes after its end
        }
    )


def test_without_bf16_units_products_run_as_fp32_and_that_is_said():
    old, new = gpu_specs.find("t4"), gpu_specs.find("l4")

    assert roofline_seconds(PRODUCT, old, "amp-bf16") == roofline_seconds(PRODUCT, old, "fp32")
    assert roofline_seconds(PRODUCT, new, "amp-bf16")["step"] < roofline_seconds(PRODUCT, new, "fp32")["step"]
    assert "no bf16 units" in stated_error(old, "amp-bf16")
    assert "no bf16 units" not in stated_error(new, "amp-bf16")
    assert "no bf16 units" not in stated_error(old, "amp-fp16")


def test_scaled_to_a_measured_step_ratios_stay():
    every = {"forward": 1.0, "backward": 3.0, "optimizer": 1.0, "step": 5.0}

    assert scaled(every, measured=6.0, estimated=4.0) == pytest.approx(
        {"forward": 1.5, "backward": 4.5, "optimizer": 1.5, "step": 7.5}
    )


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
