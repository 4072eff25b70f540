"""What the gateway is as a process: the sockets that it listens on, how it starts and how it stops."""
