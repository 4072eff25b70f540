"""What gateways on one database tell each other."""

from pathlib import Path

import pytest

from service.domain.backend import Target
from service.domain.model_state import ModelState
from service.persistence.database import Database
from service.persistence.membership import Membership

pytestmark = pytest.mark.anyio

TARGET = Target("digits", "1.1")


async def test_a_failed_load_counts_for_the_gateways_of_the_same_model_server(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'shared.db'}")
    database.open()
    leader, follower, elsewhere = (
        Membership(database, name, server) for name, server in (("a", "one:8081"), ("b", "one:8081"), ("c", "two:8081"))
    )
    leader.tell({"digits": ModelState("digits", revision=3)}, {TARGET: "workers died"})
    for each in (leader, follower, elsewhere):
        await each.until_free(TARGET, 0)  # writes and reads the heartbeats once
    assert follower.failure(TARGET, 3) == "workers died"
    assert follower.failure(TARGET, 4) == ""
    assert elsewhere.failure(TARGET, 3) == ""
    database.close()
