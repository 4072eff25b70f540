"""A version that cannot be loaded is tried again, however often it has failed."""

from service.batching.batcher import Batcher
from service.domain.archive import Archive
from service.domain.backend import Target
from service.domain.model_state import VersionRecord
from service.errors.gateway import BackendFailed
from service.serving.model_version import ModelVersion
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.fake_backend import FakeBackend
from tests.service.limits import LIMITS

TARGET = Target("digits", "1.0")


def test_a_load_may_fail_for_days() -> None:
    archive = Archive(file="a.mar", model="digits", version="1.0", release="1.0", variant="fp32", sha256="0" * 64)
    metrics = VersionMetrics(Metrics(), TARGET)
    version = ModelVersion(VersionRecord(archive), 1, 1, 1, Batcher(TARGET, FakeBackend(), LIMITS, metrics), metrics)
    for _ in range(1100):  # a float has no power of two above the 1023rd
        version.start_loading("trying")
        version.fail(BackendFailed("no memory"), "no memory")
    assert version.state == "failed"
    assert not version.is_retry_due
