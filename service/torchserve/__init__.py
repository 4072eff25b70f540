"""Everything that knows TorchServe."""
