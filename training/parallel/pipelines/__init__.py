"""Strategies that cut the network into stages."""
