# sf for the CPU:        docker build -t sf .
# for an accelerator:    docker build -t sf --build-arg TORCH=cu130 .
# a training:            docker run --rm --shm-size=1g -v "$PWD/train_dir:/runs/train_dir" sf sf-train --env=CartPole-v1
FROM python:3.11-slim-bookworm

# The build of torch: cpu, or one for CUDA such as cu130.
ARG TORCH=cpu

RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/sf
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url "https://download.pytorch.org/whl/${TORCH}" "torch==2.13.0+${TORCH}"
RUN pip install --no-cache-dir --constraint constraints.txt --editable .

WORKDIR /runs
CMD ["sf", "doctor"]
