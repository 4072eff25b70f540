"""Where trusted keys and the state may be."""

from pathlib import Path
from typing import Any

import pytest

from service.config.settings import Settings
from service.persistence.engines.place import require_place
from tests.signing import new_key, trust


def test_a_folder_without_keys_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TORCHGATE_TRUSTED_KEYS_DIR=.*No such file"):
        Settings.model_validate({"trusted_keys_dir": tmp_path / "missing"})
    with pytest.raises(ValueError, match=r"TORCHGATE_TRUSTED_KEYS_DIR=.*there is no \*\.pub"):
        Settings.model_validate({"trusted_keys_dir": tmp_path})
    (tmp_path / "1.pub").mkdir()
    with pytest.raises(ValueError, match=r"1\.pub: it is not a regular file; leave only readable \*\.pub"):
        Settings.model_validate({"trusted_keys_dir": tmp_path})


def test_who_can_replace_the_store_can_neither_add_a_key_nor_make_the_counter_forgotten(tmp_path: Path) -> None:
    store, key = tmp_path / "store", new_key()
    store.mkdir()
    keys = trust(tmp_path / "keys", key)
    given: dict[str, Any] = {"model_store": store, "trusted_keys_dir": keys}
    for url in (None, f"sqlite:///{store}/state.db", f"sqlite:///{store}/../store/state.db"):
        with pytest.raises(ValueError, match=rf"{keys}: .*Set TORCHGATE_DATABASE_URL=.* outside of"):
            require_place(Settings.model_validate({**given, "database_url": url}))
    require_place(Settings.model_validate({**given, "database_url": f"sqlite:///{tmp_path}/state.db"}))
    trust(store / "keys", key)
    with pytest.raises(ValueError, match=r"TORCHGATE_TRUSTED_KEYS_DIR=.*/keys: it is in the model store"):
        Settings.model_validate({**given, "trusted_keys_dir": store / "keys"})
