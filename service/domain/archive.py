"""The archives of the model store, as its manifest lists them."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field

from service.domain.backend import Target


class StoreError(Exception):
    """The model store, its manifest or one of its archives cannot be used; the message says which and why."""


# unsigned: no signature of this release. unknown_key: by a key that is not trusted, or no longer. forged: not of this
# manifest. replayed: an older manifest than one before. expired. revoked: the manifest no longer lists the archive.
# tampered: the archive is not the one in the manifest.
TrustFault = Literal["unsigned", "unknown_key", "forged", "replayed", "expired", "revoked", "tampered"]


class TrustError(StoreError):
    """A manifest or an archive that must not be loaded: it may not be what was released."""

    def __init__(self, fault: TrustFault, text: str) -> None:
        super().__init__(f"{text} ({fault})")
        self.fault: TrustFault = fault
        self.text = text


class Archive(BaseModel, frozen=True):
    """One line of the manifest."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\.mar$")  # a bare name: no path leads out of the store
    model: str = Field(min_length=1)
    version: str = Field(min_length=1)
    release: str = Field(min_length=1)
    variant: str = Field(min_length=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def target(self) -> Target:
        """Return the version that the archive holds."""
        return Target(self.model, self.version)


@dataclass(frozen=True)
class Catalog:
    """What the manifest lists: for each model its archives, newest release first, in a release the default variant."""

    archives: tuple[Archive, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models, sorted."""
        return tuple(sorted({archive.model for archive in self.archives}))

    def of(self, model: str) -> list[Archive]:
        """Return the archives of one model."""
        return [archive for archive in self.archives if archive.model == model]
