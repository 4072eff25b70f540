"""What every test may use."""

import signal

import pytest

from tests.digits import held_out, trained_digits
from tests.stack import gateway, loaded_torchserve, torchserve, trained

__all__ = ["anyio_backend", "gateway", "held_out", "loaded_torchserve", "torchserve", "trained", "trained_digits"]


# A shell without job control starts its background jobs with SIGINT ignored, and what is ignored stays so in every
# process below, where `sh` cannot even trap it. The servers that are tested here must hear it however pytest is run.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """Run `anyio` tests on asyncio, the only loop that the gateway runs on."""
    return "asyncio"
