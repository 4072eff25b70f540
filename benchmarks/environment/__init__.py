"""The machine below a measurement: its folders, its processes, its processor and its allocator."""
