"""What `torchgate serve` needs before it listens: settings, the state's database, the token's folder, the port."""

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from datetime import UTC, datetime

from service.config.environment import read_file
from service.config.places.sources import DEFAULT, Sources
from service.config.settings import Settings
from service.config.token_file import NoTokenFolder, TokenFile
from service.doctor.finding import Finding, error, ok, warning
from service.domain.archive import Catalog, StoreError
from service.persistence.archives.manifest import MANIFEST, MOST_BYTES, read_catalog
from service.persistence.archives.signatures import RENEW, read_keys, verified
from service.persistence.archives.trust import AnyManifest
from service.persistence.engines.place import require_place, shown
from service.process.entrance import open_entrance
from service.process.listening import CannotListen

TRAIN = "Run make train-and-archive, or name the store that has some"


def settings_found(settings: Settings, sources: Sources) -> Finding:
    """Return how many settings are set, and where."""
    names = type(settings).model_fields
    places = Counter(place for name in names if (place := sources.place(name)) != DEFAULT)
    where = ", ".join(f"{count} from {place}" for place, count in places.items())
    return ok("settings", f"{where or 'all by default'}, of {len(names)}; torchgate settings lists them")


def state(settings: Settings) -> Finding:
    """Return whether the state's database, and the model store, are there and can be used."""
    try:
        require_place(settings)
    except ValueError as fault:
        return error("state" if settings.model_store.is_dir() else "model store", str(fault))
    return ok("state", shown(settings.state_url))


def model_store(settings: Settings) -> tuple[Catalog, Iterator[Finding]]:
    """Return what the store lists, and what was found; nothing if `state` has found that it is missing."""
    store, empty = settings.model_store, Catalog(())
    if not store.is_dir():
        return empty, iter(())
    try:
        catalog = read_catalog(store, AnyManifest())
        missing = [each.file for each in catalog.archives if not (store / each.file).is_file()]
        _require_signature(settings)
    except StoreError as fault:
        return empty, iter([warning("model store", str(fault), "Until that is mended, nothing new is loaded")])
    if not catalog.archives:
        return catalog, iter([warning("model store", f"no archive is listed in {store / MANIFEST}", TRAIN)])
    if missing:
        text = f"{store / MANIFEST} lists {missing[0]}, which is not there"
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        return catalog, iter([warning("model store", text + more, "Put it back, or archive its run again")])
    text = f"{len(catalog.archives)} archives of {', '.join(catalog.models)} in {store}"
    return catalog, iter([ok("model store", text)])


def token(settings: Settings) -> Finding:
    """Return where the admin token comes from."""
    if settings.admin_token is not None:
        return ok("admin token", "it is set")
    file = TokenFile(settings.token_dir, settings.port)
    try:
        file.require_folder()
    except NoTokenFolder as fault:
        return error("admin token", str(fault))
    return ok("admin token", f"serve makes one in {file.path.parent}")


def port(settings: Settings, environ: MutableMapping[str, str]) -> Finding:
    """Return whether the gateway can listen."""
    try:
        settings, entrance = open_entrance(settings, environ, is_taking_over=False)
    except CannotListen as fault:
        return error("port", str(fault))
    with closing(entrance):
        numbers = entrance.ports
    verb = "is" if len(numbers) == 1 else "are"
    return ok("port", f"{settings.host}, {' and '.join(map(str, numbers))} {verb} free")


def _require_signature(settings: Settings) -> None:
    """Raise StoreError unless a trusted key has signed the manifest, where one must have."""
    if settings.trusted_keys_dir is None or not (path := settings.model_store / MANIFEST).exists():
        return
    keys = read_keys(settings.trusted_keys_dir)
    try:
        written = read_file(path, MOST_BYTES)
    except OSError as fault:
        raise StoreError(f"{path}: {fault.strerror}") from fault
    signed = verified(settings.model_store, written, keys, settings.trusted_keys_dir)
    if datetime.now(UTC) >= signed.expires:
        raise StoreError(f"the manifest's signature ended at {signed.expires.isoformat()}: {RENEW}")
