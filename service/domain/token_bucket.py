"""A token bucket: a rate, and a burst after a pause."""

ROUNDING = 1e-9  # of a token: 0.1 + 0.2 is more than 0.3


class TokenBucket:
    """Fills with `rate` tokens a second, up to `burst`. It begins full.

    Who takes more than a burst gets it from a full bucket, which is in debt then: nobody is refused for ever.
    """

    __slots__ = ("_burst", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._updated = 0.0

    def missing_seconds(self, num_tokens: float, now: float) -> float:
        """Return when so many tokens may be taken, 0 for now; `now` never goes back."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        missing = min(num_tokens, self._burst) - self._tokens
        return missing / self._rate if missing > ROUNDING else 0

    def take(self, num_tokens: float, now: float) -> float:
        """Take tokens and return 0, or take none and return the seconds until they may be taken."""
        seconds = self.missing_seconds(num_tokens, now)
        if not seconds:
            self._tokens -= num_tokens
        return seconds
