"""A gateway whose event loop hangs ends, and says where it hung."""

import signal
import socket
from pathlib import Path

import pytest

from service.process.watchdog import EXIT_STATUS
from tests.gateway import GatewayProcess
from tests.service.process.test_take_over import gateway
from tests.stores import make_store


@pytest.fixture
def hanging(tmp_path: Path) -> GatewayProcess:
    make_store(tmp_path / "store", (("digits", "1.0", "fp32"),))
    return gateway(
        {
            "TORCHGATE_MODEL_STORE": str(tmp_path / "store"),
            "TORCHGATE_BACKEND": "workers",
            "TORCHGATE_WATCHDOG_SECONDS": "1",
        }
    )


@pytest.mark.parametrize(("image", "status"), [(b"wait", EXIT_STATUS), (b"spin", -signal.SIGVTALRM)])
def test_it_ends_and_names_what_hung(hanging: GatewayProcess, image: bytes, status: int) -> None:
    with hanging:
        hanging.until_ready()
        host, _, port = hanging.url.removeprefix("http://").partition(":")
        assert hanging.process is not None
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 4\r\n\r\n"
            )
            client.sendall(image)
            assert hanging.process.wait(60) == status
        assert 'fake_gateway.py", line' in hanging.log  # in the stack of the main thread
        if image == b"wait":
            (line,) = [record for record in hanging.records() if record["level"] == "CRITICAL"]
            assert "TORCHGATE_WATCHDOG_SECONDS" in line["message"]
