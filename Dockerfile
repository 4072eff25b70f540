# Three images from one file: gateway (no torch in it), torchserve and trainer.
#
#   docker build --target gateway -t torchgate-gateway .
#
# Nothing here needs BuildKit. The classic builder goes through the stages in their order up to its target: the small ones
# come first. What changes often is copied last, so that an edit of the code installs nothing anew.

# With a digest (NAME@sha256:...), builds of another day begin with the same bytes.
ARG BASE_IMAGE=debian:bookworm-slim
FROM $BASE_IMAGE AS base
# pip comes as the one file that Debian's python3-venv would make an environment from (and brings ca-certificates). It is
# run where it lies: the environment itself holds neither pip nor setuptools.
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-pip-whl \
 && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/share/python-wheels/pip-*.whl /opt/pip.whl \
 && python3 -m venv --without-pip /venv
# One user for all three images: the trainer writes the volume that the others read. A new volume takes its owner from
# the image that mounts it first, so all three have the folder. The home, for the caches that libraries insist on, is the
# one folder that can be written when the rest is read-only.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp torchgate \
 && install -d -o torchgate -g torchgate /model_store /verified_archives /runs /state /predictions \
 && install -d -o torchgate -g torchgate -m 700 /run/torchserve
WORKDIR /app
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TORCHGATE_MODEL_STORE=/model_store

# What pip does in every image: it installs wheels alone, so that no package runs code of its own here, and refuses a file
# whose sha256 is not in deploy/locked.
RUN printf '%s\n' '#!/bin/sh' \
    'exec python /opt/pip.whl/pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: "$@"' \
    >/opt/install-locked && chmod +x /opt/install-locked

# The distribution itself, for its command and its version, and its Python client; their dependencies come without them.
FROM base AS wheel
COPY deploy/locked/build.txt /opt/locked/
RUN /opt/install-locked -r /opt/locked/build.txt
COPY pyproject.toml README.md LICENSE /build/
COPY service /build/service
COPY client /build/client
RUN python /opt/pip.whl/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels-built /build /build/client

FROM base AS gateway
# `postgres prediction-log`, for gateways that keep one: it is not there by itself, since pyarrow takes 170 MB.
ARG GATEWAY_EXTRAS="postgres tracing"
COPY deploy/locked/base.txt deploy/locked/postgres.txt deploy/locked/prediction-log.txt deploy/locked/tracing.txt /opt/locked/
RUN set -- && for part in base $GATEWAY_EXTRAS; do set -- "$@" -r "/opt/locked/$part.txt"; done && /opt/install-locked "$@"
COPY --from=wheel /wheels-built /opt/wheels
RUN python /opt/pip.whl/pip install --no-cache-dir --no-deps /opt/wheels/*.whl
COPY deploy/sbom.py deploy/healthcheck.py /opt/
RUN python /opt/sbom.py torchgate-gateway
# The model store is another's; what the gateway itself has to remember lies in a volume of its own.
ENV TORCHGATE_HOST=0.0.0.0 \
    TORCHGATE_DATABASE_URL=sqlite:////state/torchgate.db \
    TORCHGATE_TOKEN_DIR=/state
USER torchgate
VOLUME ["/state"]
EXPOSE 8000
# Healthy means: answers predictions. The start period has room for a training before that.
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s CMD \
    ["python", "/opt/healthcheck.py"]
CMD ["torchgate", "serve"]

# What the other two share, torch above all: one layer, stored and sent once.
FROM base AS torch
# PyTorch's index of CPU wheels. Empty means none: pip's own index then gives its default build of torch.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY constraints.txt /opt/
COPY deploy/locked/shared.txt /opt/locked/
# torch is pinned by version, not by hash: which file it is depends on the index. Its C++ headers and C++ tests are 150 MB
# that nothing here compiles or runs.
RUN /opt/install-locked -r /opt/locked/shared.txt \
 && python /opt/pip.whl/pip install --no-cache-dir ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    -c /opt/constraints.txt torch \
 && rm -rf /venv/lib/python3*/site-packages/torch/include /venv/lib/python3*/site-packages/torch/test

FROM torch AS torchserve
# What its workers are started with where it is there (service/backends/embedded/allocator.py).
RUN apt-get update \
 && apt-get install -y --no-install-recommends libtcmalloc-minimal4 \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY deploy/locked/torchserve.txt /opt/locked/
RUN /opt/install-locked -r /opt/locked/torchserve.txt
COPY deploy/sbom.py /opt/
RUN python /opt/sbom.py torchgate-torchserve
COPY handlers handlers
COPY deploy/torchserve.sh deploy/torchserve-worker.sh deploy/
# It listens on loopback, as everywhere, unless TORCHGATE_TORCHSERVE_BIND is set: whoever reaches it can load code.
ENV PYTHON=/venv/bin/python
USER torchgate
EXPOSE 7070 8080 8081 8082
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ping', timeout=4)"]
CMD ["deploy/torchserve.sh"]

FROM torch AS trainer
COPY deploy/locked/training.txt /opt/locked/
RUN /opt/install-locked -r /opt/locked/training.txt
COPY deploy/sbom.py /opt/
RUN python /opt/sbom.py torchgate-trainer
COPY handlers/*.py handlers/
COPY training training
USER torchgate
# Runs go to ./runs: the volume.
WORKDIR /
ENV PYTHONPATH=/app
VOLUME ["/model_store", "/runs"]
# Python, as the first process of a container, ignores SIGTERM; SIGINT it answers by cleaning up.
STOPSIGNAL SIGINT
ENTRYPOINT ["python", "-m", "training"]
CMD ["pipeline"]
