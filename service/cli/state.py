"""The verbs `torchgate state ...`: they work on the database itself, with the gateway's own settings."""

import argparse
from functools import partial
from pathlib import Path

from service.cli.settings import config_flag


def add_state_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verbs; each sets `subverb`, `file` (None without one) and `is_forced`."""
    help_text = "back up and restore the traffic, labels, rollouts and events of TORCHGATE_DATABASE_URL"
    group = verbs.add_parser("state", help=help_text, description=help_text).add_subparsers(
        dest="subverb", required=True
    )
    add = partial(group.add_parser, parents=[config_flag()])
    backup = add("backup", help="write the state into a new file, also while gateways run")
    restore = add("restore", help="replace the state by a backup; the former state is kept")
    rotate = add("rotate-key", help="sign prediction ids with a new key, also while gateways run")
    for each in (backup, restore):
        each.add_argument("file", type=Path)
    for each in (backup, restore, rotate):
        each.set_defaults(is_forced=False)
    rotate.set_defaults(file=None)
    restore.add_argument(
        "--force",
        action="store_true",
        dest="is_forced",
        help="restore even if the database is in use or damaged",
    )
