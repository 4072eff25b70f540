"""Readers of images in the layouts that people have them in."""
