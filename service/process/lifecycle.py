"""Tells the application what the server is about to do."""


class Lifecycle:
    """One gateway's life, shared by its server and its application."""

    def __init__(self) -> None:
        self.is_stopping = False  # /readyz says no, so that load balancers send their requests elsewhere
