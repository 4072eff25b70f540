# Three images from one file: gateway (no torch in it), torchserve and trainer.
#
#   docker build --target gateway -t torchgate-gateway .
#
# Nothing here needs BuildKit. What changes often is copied last, so that an edit of the code installs nothing anew.

FROM debian:bookworm-slim AS base
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/*
# One user for all three images: the trainer writes the volume that the others read.
RUN useradd --uid 10001 --create-home torchgate \
 && install -d -o torchgate -g torchgate /app /model_store /runs
WORKDIR /app
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TORCHGATE_MODEL_STORE=/model_store

# --- environments: built where pip is, copied to where it is not -----------------------------------------------------

FROM base AS builder
# PyTorch's index of CPU wheels. Empty means none: pip's own index then gives its default build of torch.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /venv
ENV PIP_EXTRA_INDEX_URL=$TORCH_INDEX_URL \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt pyproject.toml /build/
COPY deploy/requirements.py /build/deploy/

FROM builder AS gateway-builder
RUN python3 /build/deploy/requirements.py >/build/gateway.txt \
 && pip install -c /build/constraints.txt -r /build/gateway.txt
# The distribution itself, for its command and its version; its dependencies are there.
COPY README.md LICENSE /build/
COPY service /build/service
RUN pip install --no-deps /build

FROM builder AS torchserve-builder
RUN python3 /build/deploy/requirements.py torchserve >/build/torchserve.txt \
 && pip install -c /build/constraints.txt -r /build/torchserve.txt

# On top of the server's: torch is the bulk of both, and is fetched once.
FROM torchserve-builder AS trainer-builder
RUN python3 /build/deploy/requirements.py training >/build/training.txt \
 && pip install -c /build/constraints.txt -r /build/training.txt

# --- images ------------------------------------------------------------------------------------------------------------

FROM base AS trainer
COPY --from=trainer-builder /venv /venv
COPY handlers/image_classifier.py handlers/
COPY training training
USER torchgate
VOLUME ["/model_store", "/runs"]
# Python, as the first process of a container, ignores SIGTERM; SIGINT it answers by cleaning up.
STOPSIGNAL SIGINT
ENTRYPOINT ["python", "-m", "training"]
CMD ["pipeline", "--runs", "/runs"]

FROM base AS torchserve
COPY --from=torchserve-builder /venv /venv
COPY handlers handlers
COPY deploy/torchserve.sh deploy/
# It listens on loopback, as everywhere, unless TORCHGATE_TORCHSERVE_BIND is set: whoever reaches it can load code.
ENV PYTHON=/venv/bin/python
USER torchgate
EXPOSE 7070 8080 8081 8082
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ping', timeout=4)"]
CMD ["deploy/torchserve.sh"]

FROM base AS gateway
COPY --from=gateway-builder /venv /venv
ENV TORCHGATE_HOST=0.0.0.0
USER torchgate
EXPOSE 8000
# Healthy means: answers predictions. The start period has room for a training before that.
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["torchgate", "serve"]
