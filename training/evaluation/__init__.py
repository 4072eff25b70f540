"""What a model is worth: accuracy, calibration, latency."""
