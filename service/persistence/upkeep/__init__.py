"""Upkeep of the state's database: backups, restores, and the end of old rows."""
