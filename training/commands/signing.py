"""The verbs that make keys and sign the model store's manifest."""

from collections.abc import Sequence
from pathlib import Path

from training.archive.manifest import locked, manifest_path, read_manifest, write_manifest, writing
from training.archive.signatures import key_id_of, new_key, public_pem, read_key, signature_path, signer
from training.commands.arguments import parse
from training.errors import ArchiveError, SettingError
from training.options.config import ArchiveConfig
from training.options.signing import SignConfig

KEYS_USAGE = """usage: python -m training keys new FILE
       python -m training keys show FILE

new   writes a private key to FILE, for its owner alone, and the public key to FILE.pub
show  prints the id and the public key of FILE

The private key signs: TORCHGATE_SIGNING_KEY_FILE or --signing-key-file. FILE.pub goes into the folder that the gateway
has as TORCHGATE_TRUSTED_KEYS_DIR."""


def run_keys(args: Sequence[str], _: ArchiveConfig) -> None:
    """Make a key, or show one."""
    match args:
        case ["new", file]:
            public = new_key(Path(file))
            print(f"{file}: the private key; keep it where manifests are signed, and nowhere else")
            print(f"{public}: the public key {key_id_of(read_key(Path(file)).public_key())}; give it to the gateways")
        case ["show", file]:
            key = read_key(Path(file)).public_key()
            print(f"{key_id_of(key)}\n{public_pem(key).decode()}", end="")
        case [] | ["-h"] | ["--help"]:
            print(KEYS_USAGE)
        case _:
            raise SettingError(f"keys takes `new FILE` or `show FILE`, not {' '.join(args)!r}")


def run_sign(args: Sequence[str], where: ArchiveConfig) -> None:
    """Sign the manifest that is there, without the archives that are revoked."""
    options = parse("sign", SignConfig(where.model_store, where.signing_key_file), args)
    signs = signer(options.signing_key_file, options.signature_days)
    if signs is None:
        raise SettingError("sign needs a key: --signing-key-file, or TORCHGATE_SIGNING_KEY_FILE")
    store, path = options.model_store, manifest_path(options.model_store)
    if not path.exists():
        raise ArchiveError(f"there is no {path} to sign")
    with locked(store), writing(store):
        entries = read_manifest(store)
        if unknown := set(options.revoke) - {entry.file for entry in entries}:
            listed = ", ".join(entry.file for entry in entries) or "nothing"
            raise ArchiveError(f"{path} does not list {', '.join(sorted(unknown))}; it lists {listed}")
        if options.revoke:
            write_manifest(store, [entry for entry in entries if entry.file not in options.revoke], signs)
        else:
            signs.sign(path)
    print(f"{signature_path(path)} is signed by {key_id_of(signs.key.public_key())} for {signs.days:g} days")
