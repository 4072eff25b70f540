"""The `torchgate` command: settings, then the application, then its server."""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import NoReturn

from pydantic import SecretStr

from service.cli.commands import INTERRUPTED, add_verbs, run
from service.cli.completion import add_completion_verb
from service.cli.settings import given_flags, refusal, setting_flags, settings_text
from service.cli.state import add_state_verbs
from service.cli.verbs import add_common_options, common_options
from service.config.places.file import chosen_file
from service.config.places.sources import Sources, read_sources
from service.config.settings import Settings
from service.config.token_file import NoTokenFolder, TokenFile, own_token
from service.config.variables import require_known
from service.process.descriptors import raise_limit
from service.process.entrance import Entrance, open_entrance
from service.process.lifecycle import Lifecycle
from service.process.listening import CannotListen
from service.process.privacy import hide_from_other_processes
from service.process.systemd import Supervisor
from service.telemetry.log_stream import LogStream, configure_logging


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="torchgate", description="A gateway for image classifiers on TorchServe.")
    parser.add_argument("--version", action="version", version=f"torchgate {version('torchgate')}")
    add_common_options(parser)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    # No abbreviations: --admin-token would be one of --admin-token-file.
    add = partial(verbs.add_parser, parents=[setting_flags()], allow_abbrev=False)
    usage = "torchgate {} [-h] [--SETTING VALUE ...] {}"
    serving = add(
        "serve", usage=usage.format("serve", "[--take-over] [STORE]"), help="run the gateway until SIGTERM or Ctrl-C"
    )
    serving.add_argument("store", nargs="?", metavar="STORE", help="short for --model-store STORE")
    serving.add_argument(
        "--take-over",
        action="store_true",
        help="load the versions, then take the port over from the running gateway, which drains and exits; start "
        "as usual if none runs",
    )
    check_help = (
        "look at settings, state, model store, port, Java and machine, and say what to mend; status 2 if serve "
    )
    checking = add("check", usage=usage.format("check", "[--json]"), help=f"{check_help}would not start")
    listing = add(
        "settings",
        usage=usage.format("settings", "[--json]"),
        help="list every setting with its present value, where that comes from, and its default",
    )
    for each in (checking, listing):
        each.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print a document for programs"
        )
    # All that follows is training's, --help included: no argument here begins with what would make it an option.
    training = verbs.add_parser(
        "train",
        add_help=False,
        prefix_chars="\0",
        help="train a model and put it into the model store, or run one stage",
    )
    training.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="[STAGE] [OPTIONS]",
        help="a stage of training and its options; without a stage, the whole pipeline",
    )
    training.set_defaults(act=lambda options: become_training(options.arguments))
    add_verbs(verbs)
    add_state_verbs(verbs)
    add_completion_verb(verbs, parser)
    return parser


def become_training(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by training, a program of its own; without a stage by its pipeline."""
    if find_spec("training") is None:
        sys.exit(_complain("training is not installed here: pip install 'torchgate[training]'"))
    is_stage = arguments and (not arguments[0].startswith("-") or arguments[0] in {"-h", "--help"})
    stage = arguments if is_stage else ["pipeline", *arguments]
    os.execv(sys.executable, [sys.executable, "-m", "training", *stage])  # noqa: S606 - no shell, on purpose


def main() -> None:
    """Run the command line; a wrong setting or a taken port ends it with status 2 and one line per fault."""
    parser = command_parser()
    options, unknown = parser.parse_known_args()
    verb = options.verb
    if unknown:
        reads_settings = verb in {"serve", "check", "settings"}
        parser.error(refusal(unknown) if reads_settings else f"unrecognized arguments: {' '.join(unknown)}")
    if "call" in options:
        sys.exit(run(options))
    given = common_options(options)
    is_json = verb in {"check", "settings"} and given.pop("json", False)
    if given:
        parser.error(f"--{next(iter(given))} is for the verbs that ask a running gateway, not for {verb}")
    if "act" in options:
        options.act(options)
        return
    flags = given_flags(options)
    if (store := getattr(options, "store", None)) is not None:
        if "model_store" in flags:
            parser.error("STORE and --model-store are one setting; give one of the two")
        flags["model_store"] = store
    read = partial(_read, flags, options.config)
    if verb == "check":
        from service.doctor.check import check  # noqa: PLC0415 - the other verbs need none of it

        sys.exit(check(read, os.environ, is_json=is_json))
    try:
        settings, sources = read()
    except ValueError as error:
        sys.exit(_complain(str(error)))
    if verb == "settings":
        print(settings_text(settings, sources, is_json=is_json))
        return
    if verb == "state":
        from service.persistence.upkeep import commands  # noqa: PLC0415

        sys.exit(commands.run(settings, options.subverb, options.file, is_forced=options.is_forced))
    from service.persistence.engines.place import require_place  # noqa: PLC0415 - the other verbs need no database

    try:
        require_place(settings)
        if settings.admin_token is None:
            TokenFile(settings.token_dir, settings.port).require_folder()
        settings, entrance = open_entrance(settings, os.environ, is_taking_over=options.take_over)
    except (ValueError, CannotListen, NoTokenFolder) as error:
        sys.exit(_complain(sources.named(str(error))))
    with contextlib.closing(entrance):
        serve(settings, entrance)


def serve(settings: Settings, entrance: Entrance) -> None:
    """Answer requests until a signal stops it or another gateway takes over, then finish those in progress."""
    from service.app import create_app  # noqa: PLC0415
    from service.http.server.server import run_server  # noqa: PLC0415 - the other verbs need none of it
    from service.http.tls.certificates import open_certificates  # noqa: PLC0415

    log_stream = LogStream()
    log_stream.start()
    configure_logging(settings.log_level, log_stream)
    hide_from_other_processes()
    raise_limit()
    lifecycle = Lifecycle()
    if settings.admin_token is None:
        token, lifecycle.while_listening = own_token(
            settings.token_dir, entrance.ports, is_taking_over=entrance.is_taking_over
        )
        settings = settings.model_copy(update={"admin_token": SecretStr(token)})
    certificates = open_certificates(settings.tls_files)
    app = create_app(settings, lifecycle=lifecycle, certificates=certificates, log_stream=log_stream)
    try:
        run_server(app, settings, entrance, lifecycle, certificates.context, Supervisor(os.environ))
    except KeyboardInterrupt:  # raised again by uvicorn once the gateway has drained: it is no fault
        sys.exit(INTERRUPTED)
    finally:
        log_stream.flush()


def _read(flags: Mapping[str, str], config: str | None) -> tuple[Settings, Sources]:
    """Return the settings, and where each comes from; raises ValueError with a line for each fault."""
    require_known(os.environ)
    sources = read_sources(flags, chosen_file(config, os.environ))
    return sources.settings(), sources


def _complain(text: str) -> int:
    print(f"torchgate: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
