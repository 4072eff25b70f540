#!/usr/bin/env bash
# Writes deploy/locked: for `make setup` and each image, the versions of constraints.txt and the sha256 of every file that
# they may be, for each platform and Python. Run by `make lock`, with uv in the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted() { python3 deploy/requirements.py "$@"; }
# PyTorch's own index and pip's have different files of torch, so no hash fits both. What only the one with CUDA needs
# comes with it.
lock() { # lock NAME: what standard input asks for
    printf 'deploy/locked/%s.txt\n' "$1"
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --constraints constraints.txt --excludes deploy/locked/cuda.in --no-emit-package torch \
        --output-file "deploy/locked/$1.txt" -
}

for part in build base postgres prediction-log setup tracing torchserve training; do
    wanted "$part" | lock "$part"
done
{ wanted torchserve && wanted training; } | sort | uniq -d | lock shared
wanted base setup training torchserve | lock serve
wanted base dev setup training torchserve | lock all
