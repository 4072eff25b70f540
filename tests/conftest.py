"""What every test may use."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run `anyio` tests on asyncio, the only loop that the gateway runs on."""
    return "asyncio"
