"""Worker processes on demand, and one in reserve that has imported torch already."""

from service.backends.embedded.folder import TEMPORARY, PrivateFolder
from service.backends.embedded.process import Launcher
from service.backends.embedded.worker import Worker


class Spares:
    """Starts workers for every version; the one in reserve belongs to none yet."""

    def __init__(self, launcher: Launcher, folder: PrivateFolder) -> None:
        self._launcher = launcher
        self._folder = folder
        self._spare: Worker | None = None

    def take(self) -> Worker:
        """Return a worker without a version: the one in reserve, else a new one; BackendUnavailable if none starts."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.is_running else self._new()

    def refill(self) -> None:
        """Have one in reserve. If it dies, the next call replaces it; BackendUnavailable if none starts."""
        if self._spare is None or not self._spare.is_running:
            self._spare = self._new()

    async def close(self) -> None:
        """End the one in reserve."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.close()

    def _new(self) -> Worker:
        worker = Worker(self._launcher, self._folder.path() / TEMPORARY)
        worker.start()
        return worker
