"""Tar shards: written by pack, streamed by training."""
