"""The embedded backend: TorchServe's own Python workers, run and watched by the gateway, no Java."""
