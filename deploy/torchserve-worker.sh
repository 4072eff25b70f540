#!/bin/sh
# What TorchServe starts in place of Python for each worker. The server has microseconds of work for which all callers
# wait, a worker has milliseconds: where they meet on a core, the server goes first.
#
# Memory is had and kept as service/backends/embedded/allocator.py says; Java has its own ways.
MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_-268435456}
MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_-536870912}
TCMALLOC_RELEASE_RATE=${TCMALLOC_RELEASE_RATE-0}
export MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_ TCMALLOC_RELEASE_RATE
if [ -z "${LD_PRELOAD+set}" ]; then
    known=$(/sbin/ldconfig -p 2>/dev/null)
    for name in libtcmalloc_minimal.so libjemalloc.so; do
        found=$(printf '%s\n' "$known" | sed -n "s/^[[:space:]]*\($name\.[0-9]*\) .*/\1/p" | head -n 1)
        if [ -n "$found" ]; then
            export LD_PRELOAD="$found"
            break
        fi
    done
fi
exec nice -n 10 "$WORKER_PYTHON" "$@"
