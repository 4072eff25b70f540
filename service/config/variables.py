"""The environment variables that start with TORCHGATE_: a name that nothing reads is a mistake, and is refused."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from service.config.environment import PREFIX, env_name
from service.config.settings import Settings

CONFIG_VARIABLE = "TORCHGATE_CONFIG"  # names the file of settings, so it is none itself
# Read by the other programs of this repository, which share the gateway's environment.
OF_OTHERS = frozenset(
    {
        "TORCHGATE_URL",  # the operator's verbs
        "TORCHGATE_KEY",
        "TORCHGATE_CA_FILE",
        "TORCHGATE_CLIENT_CERT_FILE",
        "TORCHGATE_CLIENT_KEY_FILE",
        "TORCHGATE_TORCHSERVE_BIND",  # deploy/torchserve.sh
        "TORCHGATE_TORCHSERVE_METRICS_PORT",
        "TORCHGATE_TORCHSERVE_GRPC_MANAGEMENT_PORT",
        "TORCHGATE_GRAPH_FORM",  # the handler
        "TORCHGATE_SIGNING_KEY_FILE",  # the trainer
        "TORCHGATE_BIN",  # make serve
        "TORCHGATE_RUN_DIR",
        "TORCHGATE_WITH_TORCHSERVE",
        "TORCHGATE_GRAFANA_PORT",  # docker compose
        "TORCHGATE_TAG",
    }
)
PREFIXES_OF_OTHERS = ("TORCHGATE_TEST_", "TORCHGATE_TRAINING_")
# Kubernetes sets these in every pod of a namespace that has a service called torchgate.
OF_KUBERNETES = re.compile(r"TORCHGATE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
REMOVED = {
    "TORCHGATE_PROCESSES": "It was removed: run several gateways on one TORCHGATE_DATABASE_URL.",
    "TORCHGATE_MANIFEST_KEY_FILE": "It was removed: make a key with `python -m training keys new FILE`, sign with "
    "TORCHGATE_SIGNING_KEY_FILE=FILE, and put FILE.pub into the gateway's TORCHGATE_TRUSTED_KEYS_DIR.",
}


def require_known(names: Iterable[str]) -> None:
    """Raise ValueError, with one line for each, if a variable starts with TORCHGATE_ and nothing reads it."""
    known = {env_name(field) for field in Settings.model_fields} | OF_OTHERS | {CONFIG_VARIABLE}
    faults = []
    for name in sorted(name for name in names if name.upper().startswith(PREFIX) and name.upper() not in known):
        if name.startswith(PREFIXES_OF_OTHERS) or OF_KUBERNETES.fullmatch(name):
            continue
        faults.append(f"{name}: there is no such setting. {REMOVED.get(name) or _advice(name, known)}")
    if faults:
        raise ValueError("\n".join(faults))


def _advice(name: str, known: Iterable[str]) -> str:
    if near := get_close_matches(name.upper(), known, n=1, cutoff=0.75):
        return f"Did you mean {near[0]}?"
    return "Remove it, or correct its name; `torchgate settings` lists all."
