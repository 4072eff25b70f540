"""The two load generators: a closed loop of clients, and an open loop by a schedule."""
