"""The verb `torchgate profile`."""

import argparse
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.cli.gateway import CallFailed, Gateway
from service.cli.tables import table
from service.cli.verbs import add_verb, finite

MOST_ROWS = 20
NAMELESS = "forward"
NOTE = "forward is TorchScript itself and, in optimised forms of a graph, the convolutions"


def add_profile_verb(group: Any, *, is_former: bool = False) -> None:
    """Add the verb to its group; a former place of it is not listed."""
    help_text = None if is_former else "show where a version's time goes, operator by operator"
    profile = add_verb(group, "profile", help_text, _profile, profile_table, "model", "version")
    profile.add_argument("--batches", type=int, help="number of batches to profile")
    profile.add_argument(
        "--wait", type=finite, metavar="SECONDS", help="longest wait for traffic; then self-check images are used"
    )
    profile.add_argument("--trace", type=Path, metavar="FILE.json.gz", help="write a Chrome trace of the batches")


def profile_table(profile: Mapping[str, Any]) -> str:
    """Return the stages and the operators with the largest shares."""
    has_gpu = any(each["self_device_ms"] for each in profile["operators"])
    head = (
        f"{profile['model']} {profile['version']} on {', '.join(profile['devices'])}: {profile['num_batches']} batches "
        f"with {profile['num_items']} images, {profile['num_self_check']} of them the self-check's; times are a batch's"
    )
    stages = [(each["stage"], f"{each['ms']:.3f} ms", f"{each['share']:.1%}") for each in profile["stages"]]
    operators = [
        (
            each["operator"],
            f"{each['num_calls']:g}",
            f"{each['self_cpu_ms']:.3f} ms",
            f"{each['share']:.1%}",
            *((f"{each['self_device_ms']:.3f} ms", f"{each['device_share']:.1%}") if has_gpu else ()),
        )
        for each in profile["operators"][:MOST_ROWS]
    ]
    columns = ("OPERATOR", "CALLS", "SELF CPU", "SHARE", *(("GPU", "SHARE") if has_gpu else ()))
    lines = [head, table(("STAGE", "TIME", "SHARE"), stages), table(columns, operators)]
    if num_more := len(profile["operators"]) - len(operators):
        lines.append(f"and {num_more} more; --json has all")
    if any(each["operator"] == NAMELESS for each in profile["operators"]):
        lines.append(NOTE)
    return "\n".join(lines)


def _profile(gateway: Gateway, options: argparse.Namespace) -> Any:
    profile = gateway.profile(
        options.model,
        options.version,
        num_batches=options.batches,
        wait_seconds=options.wait,
        trace=options.trace is not None,
        reason=gateway.reason,
    )
    if options.trace is not None:
        if profile["trace"] is None:
            raise CallFailed("the trace is larger than may be; ask for fewer batches")
        try:
            options.trace.write_bytes(base64.b64decode(profile["trace"]))
        except OSError as error:
            raise CallFailed(f"{options.trace} cannot be written: {error.strerror}") from error
    return profile
