#!/bin/sh
# What TorchServe starts in place of Python for each worker. The server has microseconds of work for which all callers
# wait, a worker has milliseconds: where they meet on a core, the server goes first.
exec nice -n 10 "$WORKER_PYTHON" "$@"
