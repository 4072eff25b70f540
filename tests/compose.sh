#!/usr/bin/env bash
# Runs docker-compose.yml for real, as `docker compose up --build` on an empty model store, and looks at what it gives.
# Needs a Docker engine that `docker` reaches; where images cannot be pulled, an image of the name that
# docker-compose.yml uses for Prometheus must be there. Leaves no container, network or volume behind.
set -euo pipefail
cd "$(dirname "$0")/.."

export COMPOSE_PROJECT_NAME="torchgate-test-$$"
TORCHGATE_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export TORCHGATE_PORT
url=http://127.0.0.1:$TORCHGATE_PORT
deadline=$((SECONDS + 1200)) # the builds are over by then; this is for a training on a slow machine

finish() {
    status=$?
    if [ "$status" -ne 0 ]; then
        docker compose logs --tail 40 || true
        docker compose ps || true
    fi
    docker compose down -v --timeout 40 >/dev/null 2>&1 || true
    exit "$status"
}
trap finish EXIT

passed() { printf 'ok   %s\n' "$1"; }
failed() { printf 'FAIL %s\n' "$1" >&2; exit 1; }
container() { docker compose ps -q "$1"; }
python_in() { docker exec -i "$(container "$1")" python -; }
eventually() { # eventually WHAT COMMAND...: try until it succeeds
    local what=$1
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || failed "$what"
        sleep 1
    done
    passed "$what"
}

docker compose build
docker compose up -d

ready() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/readyz")" = 200 ]; }
eventually '/readyz answers 200 through the published port' ready

for digit in 0 7; do
    answer=$(curl -sf --data-binary @samples/digit-$digit.png -H 'Content-Type: image/png' "$url/predict")
    case $answer in
    *"\"predictions\":[{\"label\":\"$digit\""*) passed "digit $digit is predicted" ;;
    *) failed "digit $digit is predicted: $answer" ;;
    esac
done

curl -sf "$url/metrics" | grep -q '^torchgate_inference_requests_total{.*outcome="success".*} 2.0' ||
    failed '/metrics counts both'
passed '/metrics counts both'

scraped() {
    python_in gateway <<'PYTHON'
import json, sys, urllib.parse, urllib.request

def value(expression):
    url = "http://prometheus:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        result = json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]
    except OSError:
        return None
    return result[0]["value"][1] if result else None

predictions = 'torchgate_inference_requests_total{outcome="success",version="1.0"}'
seen = value('up{job="gateway"}'), value('up{job="torchserve"}'), value(predictions)
sys.exit(seen != ("1", "1", "2"))
PYTHON
}
eventually 'Prometheus has scraped the gateway with both, and TorchServe' scraped

docker run --rm --entrypoint python torchgate-gateway -c 'import service.app' || failed 'the gateway image runs'
if docker run --rm --entrypoint python torchgate-gateway -c 'import torch' 2>/dev/null; then
    failed 'the gateway image has no torch'
fi
passed 'the gateway image has no torch'

for service in gateway torchserve; do
    [ "$(docker exec "$(container $service)" id -u)" = 10001 ] || failed "$service does not run as root"
    passed "$service does not run as root"
done

published=$(docker ps --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --format '{{.Ports}}' |
    grep -o '[0-9.]*:[0-9]*->' | sort -u)
[ "$published" = "127.0.0.1:$TORCHGATE_PORT->" ] || failed "only the gateway is published: $published"
passed 'only the gateway is published'

healthy() {
    for service in gateway torchserve; do
        [ "$(docker inspect -f '{{.State.Health.Status}}' "$(container $service)")" = healthy ] || return 1
    done
}
eventually 'both are healthy' healthy

gateway=$(container gateway) torchserve=$(container torchserve) trainer=$(container trainer)
[ "$(docker inspect -f '{{.State.ExitCode}}' "$trainer")" = 0 ] || failed 'the trainer has ended well'
passed 'the trainer has ended well'

# A second `up` on a filled store trains nothing; it is stopped service by service to see how each one ends.
before=$SECONDS
docker compose stop >/dev/null 2>&1
[ "$((SECONDS - before))" -lt 30 ] || failed "all stop in time: $((SECONDS - before)) s"
for each in "$gateway" "$torchserve"; do
    code=$(docker inspect -f '{{.State.ExitCode}}' "$each")
    case $code in 0 | 143) ;; *) failed "$(docker inspect -f '{{.Name}}' "$each") stops cleanly: $code" ;; esac
done
passed 'all stop cleanly'
docker compose up -d
eventually '/readyz answers 200 after a second up' ready
docker compose down --timeout 40
[ -z "$(docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")" ] || failed 'down leaves nothing'
passed 'down leaves nothing'
