"""What the tests of the status page share."""

from tests.system.status_page import page, served

__all__ = ["page", "served"]
