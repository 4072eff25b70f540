"""The gateway: HTTP in front, workers behind. It never imports torch; embedded/launch.py runs in the workers."""
