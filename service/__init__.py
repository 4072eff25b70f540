"""The gateway: HTTP in front, TorchServe behind; never imports torch."""
