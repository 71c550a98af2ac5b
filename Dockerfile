# The main job: docker build -t gcprof . && docker run --rm gcprof
# Your own model: docker run --rm --gpus all -v "$PWD:/work" gcprof run train.py:make --strategies none,all
# TORCH_INDEX is where PyTorch comes from: by default its wheels for CPUs; https://pypi.org/simple has those for CUDA.
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

RUN pip install --index-url "$TORCH_INDEX" "torch>=2.9" torchvision

COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY profiler /src/profiler
COPY configs /src/configs
COPY results/reference /src/results/reference
RUN pip install /src && rm -r /src

RUN useradd --create-home profiler && mkdir /work && chown profiler /work
USER profiler
WORKDIR /work
ENTRYPOINT ["gcprof"]
CMD ["run", "--segments", "1,2,4,8,16,32"]
