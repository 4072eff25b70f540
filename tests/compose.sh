#!/usr/bin/env bash
# Runs docker-compose.yml for real, as `docker compose up --build` on a fresh clone, and looks at what it gives.
# Needs a Docker engine that `docker` reaches, git, curl and python3; where images cannot be pulled, an image of the name
# that docker-compose.yml uses for Prometheus must be there. Leaves no container, network or volume behind, only the
# images torchgate-*:test, so that the next run builds quickly.
set -euo pipefail
cd "$(dirname "$0")/.."

# The caller's own settings and .env file are not what is tested. TORCH_INDEX_URL passes: it says where wheels are.
for name in $(compgen -e | grep -E '^(TORCHGATE|COMPOSE)_' || true); do unset "$name"; done
tree=$(mktemp -d)
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -c | tar -x -C "$tree"
cd "$tree"

export COMPOSE_PROJECT_NAME="torchgate-test-$$" TORCHGATE_TAG=test
TORCHGATE_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export TORCHGATE_PORT TORCHGATE_ADMIN_TOKEN=correct-horse
url=http://127.0.0.1:$TORCHGATE_PORT

finish() {
    status=$?
    if [ "$status" -ne 0 ]; then
        docker compose ps || true
        docker compose logs --tail 40 || true
    fi
    docker compose down -v --timeout 40 >/dev/null 2>&1 || true
    rm -rf "$tree"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed() { printf 'ok   %s\n' "$1"; }
failed() { printf 'FAIL %s\n' "$1" >&2; exit 1; }
get() { curl --silent --show-error --noproxy '*' --max-time 30 "$@"; }
# All containers of a service, whether they run or not: `docker compose ps` of Compose 2 shows only those that do.
container() {
    docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
        --filter "label=com.docker.compose.service=$1"
}
state() { docker inspect -f "{{.State.$2}}" "$(container "$1")"; }
eventually() { # eventually SECONDS WHAT COMMAND...: try until it succeeds
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || failed "$what"
        sleep 1
    done
    passed "$what"
}

docker compose build

make --silent sbom >/dev/null
for has in gateway:pkg:pypi/fastapi@ gateway:pkg:deb/debian/openssl torchserve:pkg:pypi/torch@ trainer:pkg:pypi/tqdm@; do
    grep -qF "\"purl\": \"${has#*:}" "build/sbom/${has%%:*}.cdx.json" || failed "each image has its SBOM: no $has"
done
passed 'each image has its SBOM'

# A training that is cut short leaves a store that the next `up` fills.
trains() { docker logs "$(container trainer)" 2>&1 | grep '2/6' >/dev/null; }
docker compose up -d trainer
eventually 120 'the trainer trains' trains
before=$SECONDS
docker compose stop trainer
[ "$((SECONDS - before))" -lt 9 ] || failed "a training is stopped at once: $((SECONDS - before)) s"
[ "$(state trainer ExitCode)" = 130 ] || failed "an interrupted training says so: $(state trainer ExitCode)"
passed 'a training is stopped at once, and says so'

docker compose up -d
ready() { [ "$(get -o /dev/null -w '%{http_code}' "$url/readyz" 2>/dev/null)" = 200 ]; }
eventually 600 '/readyz answers 200 through the published port' ready
[ "$(state trainer Status) $(state trainer ExitCode)" = 'exited 0' ] || failed 'the trainer has ended well'
passed 'the trainer has ended well'

for digit in 0 7; do
    answer=$(get --data-binary @samples/digit-$digit.png -H 'Content-Type: image/png' "$url/predict")
    case $answer in
    *"\"predictions\":[{\"label\":\"$digit\""*) passed "digit $digit is predicted" ;;
    *) failed "digit $digit is predicted: $answer" ;;
    esac
done

# The page is whole before it is searched: a `grep -q` in a pipe closes it early, and curl calls that an error.
page=$(get "$url/metrics")
grep -q '^torchgate_inference_requests_total{.*outcome="success".*} 2.0' <<<"$page" || failed '/metrics counts both'
passed '/metrics counts both'

scraped() { # Prometheus is on the private network only, so the gateway's Python asks it
    docker exec -i "$(container gateway)" python - <<'PYTHON'
import json, sys, urllib.parse, urllib.request

def value(expression):
    url = "http://prometheus:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        result = json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]
    except OSError:
        return None
    return result[0]["value"][1] if result else None

predictions = 'torchgate_inference_requests_total{outcome="success",version="1.0"}'
http = 'sum(torchgate_http_requests_total{route="/predict"})'
seen = value('up{job="gateway"}'), value('up{job="torchserve"}'), value(predictions), value(http)
sys.exit(seen != ("1", "1", "2", "2"))
PYTHON
}
eventually 60 'Prometheus has scraped the gateway with both, and TorchServe' scraped

closed() { # closed PORT: nobody on the private network can reach it
    docker exec "$(container gateway)" python -c 'import socket, sys
try:
    socket.create_connection(("torchserve", int(sys.argv[1])), timeout=5)
except ConnectionRefusedError:
    sys.exit(0)
sys.exit(1)' "$1"
}
for port in 8081 7071; do
    closed $port || failed "TorchServe registers archives for the gateway alone: port $port is open"
done
passed 'TorchServe registers archives for the gateway alone'

docker exec "$(container gateway)" python -c 'import service.app' || failed 'the gateway image runs'
if docker exec "$(container gateway)" python -c 'import torch' 2>/dev/null; then
    failed 'the gateway image has no torch'
fi
passed 'the gateway image has no torch'

for service in gateway torchserve prometheus; do
    users=$(docker top "$(container $service)" -eo pid,uid | awk 'NR > 1 {print $2}' | sort -u)
    case $'\n'$users$'\n' in *$'\n'0$'\n'* | $'\n\n') failed "$service does not run as root: uid $users" ;; esac
    passed "$service does not run as root"
done

for service in torchserve prometheus trainer; do
    [ -z "$(docker port "$(container $service)")" ] || failed "$service publishes nothing"
done
[ "$(docker port "$(container gateway)")" = "8000/tcp -> 127.0.0.1:$TORCHGATE_PORT" ] ||
    failed "the gateway publishes one port, on loopback: $(docker port "$(container gateway)")"
passed 'only the gateway publishes a port, and on loopback'

healthy() { [ "$(state gateway Health.Status) $(state torchserve Health.Status)" = 'healthy healthy' ]; }
eventually 60 'both are healthy' healthy

label() { # label AUTHORIZATION: the status of giving one to the version
    get -o /dev/null -w '%{http_code}' -X PUT -H "Authorization: $1" -H 'If-Match: *' \
        -H 'Content-Type: application/json' -d '{"version": "1.0"}' "$url/models/digits/labels/stable"
}
[ "$(label 'Bearer wrong') $(label "Bearer $TORCHGATE_ADMIN_TOKEN")" = '403 200' ] || failed 'changes need the token'
passed 'changes need the token'
docker compose restart gateway >/dev/null 2>&1
eventually 60 'the gateway is ready again' ready
case $(get "$url/models/digits/traffic") in
*'"labels":{"stable":"1.0"}'*) passed 'what was changed outlives the gateway' ;;
*) failed 'what was changed outlives the gateway' ;;
esac
eventually 60 'both are healthy again' healthy

# A request whose second half arrives when TorchServe would be gone, were both stopped at once.
python3 - "$TORCHGATE_PORT" samples/digit-7.png >"$tree/drained" 2>&1 <<'PYTHON' &
import pathlib, socket, sys, time

body = pathlib.Path(sys.argv[2]).read_bytes()
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30) as client:
    head = f"POST /predict HTTP/1.1\r\nHost: gateway\r\nContent-Type: image/png\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body[:100])
    time.sleep(6)
    client.sendall(body[100:])
    print(client.recv(65536).decode())
PYTHON
client=$!
arrived() { get "$url/metrics" | grep '^torchgate_http_requests_in_progress{route="/predict"} 1' >/dev/null; }
eventually 5 'a request is on its way' arrived
before=$SECONDS
docker compose stop
seconds=$((SECONDS - before))
wait "$client" || failed 'a request that has begun is answered'
grep -q '"label":"7"' "$tree/drained" || failed "a request that has begun is answered: $(cat "$tree/drained")"
passed 'a request that has begun is answered before TorchServe stops'
[ "$seconds" -lt 30 ] || failed "all stop in time: $seconds s"
codes="$(state gateway ExitCode) $(state torchserve ExitCode) $(state prometheus ExitCode)"
case $codes in '0 0 0' | '0 143 0') passed "all stop cleanly, in $seconds s" ;; *) failed "all stop cleanly: $codes" ;; esac

# A second `up` finds the store filled.
docker compose up -d
eventually 60 '/readyz answers 200 after a second up' ready
filled() { [ "$(state trainer Status) $(state trainer ExitCode)" = 'exited 0' ]; }
eventually 10 'the trainer had nothing to do' filled

# Your own images: a mounted folder, one command.
mkdir -p own/zero own/one
for number in 1 2 3 4 5; do
    cp samples/digit-0.png "own/zero/$number.png"
    cp samples/digit-1.png "own/one/$number.png"
done
docker compose run --rm -v "$PWD/own:/data/own:ro" trainer pipeline --preset synthetic --data /data/own --epochs 1
docker compose restart gateway
own() { get --data-binary @samples/digit-0.png -H 'Content-Type: image/png' "$url/predict?model=own" >"$tree/own.json"; }
served() { own && grep -qE '"label":"(zero|one)"' "$tree/own.json"; }
eventually 120 'a model of your own images is served' served

docker compose down -v --timeout 40
for kind in 'container ls --all' 'network ls' 'volume ls'; do
    # shellcheck disable=SC2086 # it is a command of several words
    [ -z "$(docker $kind -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")" ] ||
        failed "down -v leaves nothing: docker $kind"
done
passed 'down -v leaves nothing'
