"""A body, taken apart into its images: in steps, so that a large one does not stop the event loop."""
