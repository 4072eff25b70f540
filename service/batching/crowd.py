"""How many images are there at once, of late: those that wait and those that are with the backend."""

# Of what it lies above the number of now, it falls by so much with each batch: callers that are answered and ask again
# are not gone.
FORGOTTEN = 0.02


class PeakConcurrency:
    """Rises at once, falls slowly."""

    def __init__(self) -> None:
        self.size = 0.0

    def see(self, num_images: int) -> None:
        """Take in that so many are there."""
        self.size = max(self.size, num_images)

    def shrink(self, num_images: int) -> None:
        """Take in that so many are left after a batch."""
        self.size -= FORGOTTEN * max(self.size - num_images, 0.0)
