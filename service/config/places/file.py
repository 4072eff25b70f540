"""The settings file, `torchgate.toml`: one key for each setting, with the text that its variable would have."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from service.config.environment import PREFIX, env_name, read_file
from service.config.settings import SECRETS, Settings
from service.config.variables import CONFIG_VARIABLE, REMOVED

CONFIG_FLAG = "--config"
USUAL_FILE = Path("torchgate.toml")
MOST_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class SettingsFile:
    """A file of settings; `named_by` is the flag or variable that names it, None if it was found in the folder."""

    path: Path
    named_by: str | None

    def read(self) -> Mapping[str, str]:
        """Return the texts of the settings in it; nothing if nobody named it and it is not there.

        Raises:
            ValueError: it cannot be read or trusted, is no TOML, or has a key that is no setting.
        """
        given = str(self.path) if self.named_by is None else f"{self.named_by}={self.path}"
        try:
            found = tomllib.loads(read_file(self.path, MOST_FILE_BYTES).decode())
            status = self.path.stat()
        except FileNotFoundError as error:
            if self.named_by is None:
                return {}
            raise ValueError(f"{given}: {error.strerror}; name a file that is there") from error
        except OSError as error:
            raise ValueError(f"{given}: {error.strerror}; it must be a file that this user can read") from error
        except RecursionError:
            raise ValueError(f"{given}: it is nested too deeply; write one key = value in each line") from None
        except ValueError as error:  # the cause might show a secret
            raise ValueError(f"{given}: it is no TOML: {error}; write one key = value in each line") from None
        if status.st_mode & 0o002:
            raise ValueError(f"{given}: anybody can write into it; run chmod o-w {self.path}")
        if self.named_by is None and status.st_uid not in {0, os.geteuid()}:
            raise ValueError(f"{given}: it is another user's; if you trust it, name it with {CONFIG_FLAG}")
        secrets = sorted(SECRETS & {name for name in found if found[name] != ""})
        if secrets and status.st_mode & 0o077:
            holds = " and ".join(secrets)
            raise ValueError(f"{given}: it holds {holds}, and others can read it; run chmod go-rwx {self.path}")
        _require_settings(given, found)
        return {
            name: str(value).lower() if value is True or value is False else str(value)
            for name, value in found.items()
            if value != ""
        }


def chosen_file(flag: str | None, environment: Mapping[str, str]) -> SettingsFile:
    """Return the file that the flag names, else the variable; else the one of the present folder."""
    if flag is not None:
        return SettingsFile(Path(flag), CONFIG_FLAG)
    if path := environment.get(CONFIG_VARIABLE):
        return SettingsFile(Path(path), CONFIG_VARIABLE)
    return SettingsFile(USUAL_FILE, None)


def _require_settings(given: str, found: Mapping[str, object]) -> None:
    faults = []
    for name, value in found.items():
        if name not in Settings.model_fields:
            faults.append(f"{given}: {name}: there is no such setting. {_advice(name, Settings.model_fields)}")
        elif not isinstance(value, str | int | float):
            faults.append(
                f"{given}: {name}: write a text, a number, true or false; a list is one text with commas between"
            )
    if faults:
        raise ValueError("\n".join(faults))


def _advice(name: str, known: Iterable[str]) -> str:
    meant = name.lower().replace("-", "_").removeprefix(PREFIX.lower())
    if told := REMOVED.get(env_name(meant)):
        return told
    if near := get_close_matches(meant, known, n=1, cutoff=0.75):
        return f"Did you mean {near[0]}?"
    return "Remove it, or correct its name; `torchgate settings` lists all."
