"""The right labels that callers send for their predictions. Everything here blocks."""

import time
from dataclasses import asdict, dataclass

from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.tables import feedback


@dataclass(frozen=True)
class FeedbackRecord:
    """The right label of one image of an answer."""

    answer: str  # a digest of the answer's id
    item: int
    model: str
    version: str
    predicted: str
    label: str
    is_correct: bool


class FeedbackStore:
    """Keeps one label for each image."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, record: FeedbackRecord) -> bool:
        """Write a label; return whether it is the first for its image."""
        try:
            with self.database.writing() as connection:
                connection.execute(insert(feedback).values(**asdict(record), time=time.time()))
        except StateUnavailable as error:
            if isinstance(error.__cause__, IntegrityError):
                return False
            raise
        return True
