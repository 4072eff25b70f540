import pytest

from service.backends.embedded.worker_pool import MemoryLimit, machine_bytes
from service.errors.gateway import BackendFailed


def test_a_setting_holds() -> None:
    assert MemoryLimit(1000).allowed_bytes(4, 600) == 1000
    with pytest.raises(BackendFailed, match="takes 1001 bytes"):
        MemoryLimit(1000).check(1001)


def test_without_one_workers_share_half_and_a_large_model_is_no_leak() -> None:
    assert MemoryLimit(0).allowed_bytes(4, 1) == machine_bytes() // 8
    assert MemoryLimit(0).allowed_bytes(4, machine_bytes()) == 2 * machine_bytes()
    MemoryLimit(0).check(machine_bytes())
