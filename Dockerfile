# ggss serve in a container. CPU by default; for a GPU:
#   docker build --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg TORCH=torch==2.13.0+cu128 \
#     --build-arg INDEX=https://download.pytorch.org/whl/cu128 .
ARG BASE=python:3.12.11-slim-bookworm
FROM ${BASE}

ARG TORCH=torch==2.13.0+cpu
ARG INDEX=https://download.pytorch.org/whl/cpu

# A CUDA base comes without Python; one of python.org has it already.
RUN command -v python3 >/dev/null || (apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*)

WORKDIR /opt/ggss
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install --extra-index-url "${INDEX}" "${TORCH}" \
    && pip install -c constraints.txt --extra-index-url "${INDEX}" '.[serve]'

# Not root, with a home for caches; models and steerers are mounted, read-only.
RUN useradd --create-home --uid 10001 ggss
USER ggss
WORKDIR /home/ggss
ENV HF_HUB_OFFLINE=1

EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

# Other addresses than 127.0.0.1 need keys: give GGSS_SERVE_KEYS, or mount a file and add --keys-file.
ENTRYPOINT ["ggss", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["small-world/llava-vicuna"]
