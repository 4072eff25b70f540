"""Every option, declared once: default, help and unit. The command line derives from this."""
