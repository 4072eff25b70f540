"""What the tests of the status page share."""

from tests.system.status_page import operator, page, served

__all__ = ["operator", "page", "served"]
