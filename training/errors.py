"""The error tree of training: each is one clear line for the person at the terminal, without a traceback.

TrainingError
├── SettingError          an option, or two that do not go together
├── DataError             images that cannot be learnt from
├── RunError              a run that lacks what a stage reads
├── ArchiveError          the model store or the archiver refused
│   └── VersionExistsError
├── ProfileError          a version cannot be loaded to be profiled, or its handler is not one that can be
├── NonFiniteLossError    training diverged
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


class RunError(TrainingError):
    """A run folder lacks a file that this stage reads; the message says which stage writes it."""


class ArchiveError(TrainingError):
    """An archive could not be made or placed."""


class VersionExistsError(ArchiveError):
    """The version is in the model store already, and archives are immutable."""


class ProfileError(TrainingError):
    """A version cannot be profiled: it does not load, or its handler is none of an image classifier."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite; nothing after that point is worth keeping."""

    exit_code = 1


class ParityError(TrainingError):
    """An exported graph deviates from the eager model by more than the tolerance, or could not be made to answer."""

    exit_code = 1
