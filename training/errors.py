"""The error tree of training: each is one clear line for the person at the terminal, without a traceback.

TrainingError
├── SettingError          an option, or two that do not go together
├── DataError             images that cannot be learnt from
├── LoaderError           a worker that reads training images died
├── RunError              a run that lacks what a stage reads
├── StorageError          a file cannot be written: a full disk, no permission, something in its way
├── ArchiveError          the model store or the archiver refused
│   └── VersionExistsError
├── ProfileError          a version cannot be loaded to be profiled, or its handler is not one that can be
├── CompileError          a compiler cannot take the model's code; the message has its line
├── NonFiniteLossError    training diverged
├── TrialPruned           a sweep gave a trial up
├── TrackingError         the store in which a run is followed refused
├── WorkersError          a process of a training that is spread over several failed
├── Interrupted           training was asked to stop, and can go on from its checkpoint
│   ├── Terminated
│   └── HungUp
└── ParityError           an exported graph does not answer like the model it was made from
"""

from typing import ClassVar


class TrainingError(Exception):
    """What stops a stage; `exit_code` is 2 for a mistake that its caller can mend, 1 for a failure of the work."""

    exit_code: ClassVar[int] = 2


class SettingError(TrainingError, ValueError):
    """An option has a value that is not allowed; the message names both and what is allowed."""


class DataError(TrainingError, ValueError):
    """A folder or an image cannot be used; the message names it."""


class LoaderError(TrainingError):
    """A process that reads training images ahead was killed, or died."""

    exit_code = 1


class RunError(TrainingError):
    """A run folder lacks a file that this stage reads; the message says which stage writes it."""


class StorageError(TrainingError):
    """A file cannot be written; the message names it and says why. What was there before is whole."""

    exit_code = 1


class ArchiveError(TrainingError):
    """An archive could not be made or placed."""


class VersionExistsError(ArchiveError):
    """The version is in the model store already, and archives are immutable."""


class ProfileError(TrainingError):
    """A version cannot be profiled: it does not load, or its handler is none of an image classifier."""


class CompileError(TrainingError):
    """A graph, a library or ONNX cannot hold the model; of a graph, the message has the line and what to write."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite; nothing after that point is worth keeping."""

    exit_code = 1


class TrialPruned(TrainingError):
    """A trial does worse than others did after as many epochs: its sweep goes on with the next one."""

    exit_code = 1


class TrackingError(TrainingError):
    """The store in which a run is followed cannot be read or written; the message names it."""

    exit_code = 1


class WorkersError(TrainingError):
    """A process of a training that is spread over several failed; the exit status is that process's, where it told."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class Interrupted(TrainingError):
    """Ctrl-C stopped training; the message says how to go on. The exit status is a shell's: 128 and the signal."""

    exit_code = 130


class Terminated(Interrupted):
    """SIGTERM did."""

    exit_code = 143


class HungUp(Interrupted):
    """SIGHUP did: the terminal was closed."""

    exit_code = 129


class ParityError(TrainingError):
    """An exported graph deviates from the eager model by more than the tolerance, or could not be made to answer."""

    exit_code = 1
