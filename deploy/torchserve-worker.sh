#!/bin/sh
# What TorchServe starts in place of Python for each worker. The server has microseconds of work for which all callers
# wait, a worker has milliseconds: where they meet on a core, the server goes first.
#
# Memory that a batch freed is kept for the next one, as in service/workers/process.py; Java has its own ways.
MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-268435456}
MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-536870912}
export MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_
exec nice -n 10 "$WORKER_PYTHON" "$@"
