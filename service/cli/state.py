"""The verbs `torchgate state ...`: they work on the database itself, with the gateway's own settings."""

import argparse
from pathlib import Path


def add_state_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verbs; each sets `subverb`, `file` (None without one) and `is_forced`."""
    help_text = "back up and restore traffic, labels, rollouts and events, where TORCHGATE_DATABASE_URL says"
    group = verbs.add_parser("state", help=help_text, description=help_text).add_subparsers(
        dest="subverb", required=True
    )
    backup = group.add_parser("backup", help="write the state into a new file, also while gateways run")
    restore = group.add_parser("restore", help="replace the state by a backup; the former state is kept")
    rotate = group.add_parser("rotate-key", help="sign prediction ids with a new key, also while gateways run")
    for each in (backup, restore):
        each.add_argument("file", type=Path)
    for each in (backup, restore, rotate):
        each.set_defaults(is_forced=False)
    rotate.set_defaults(file=None)
    restore.add_argument(
        "--force",
        action="store_true",
        dest="is_forced",
        help="restore even if a gateway uses the database, or it is damaged",
    )
