"""What every test may use."""

import pytest

from tests.stack import gateway, torchserve, trained

__all__ = ["anyio_backend", "gateway", "torchserve", "trained"]


@pytest.fixture
def anyio_backend() -> str:
    """Run `anyio` tests on asyncio, the only loop that the gateway runs on."""
    return "asyncio"
