"""Upgrades the databases of older releases; Alembic runs the steps in `versions`."""
