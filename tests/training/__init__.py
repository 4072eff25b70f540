"""The trainer, stage by stage and from end to end."""
