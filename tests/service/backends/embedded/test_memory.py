import pytest

from service.backends.embedded.worker_pool import allowed_bytes, check_loaded, machine_bytes
from service.errors.gateway import BackendFailed


def test_a_setting_holds() -> None:
    assert allowed_bytes(1000, 4, 600) == 1000
    with pytest.raises(BackendFailed, match="takes 1001 bytes"):
        check_loaded(1000, 1001)


def test_without_one_workers_share_half_and_a_large_model_is_no_leak() -> None:
    assert allowed_bytes(0, 4, 1) == machine_bytes() // 8
    assert allowed_bytes(0, 4, machine_bytes()) == 2 * machine_bytes()
    check_loaded(0, machine_bytes())
