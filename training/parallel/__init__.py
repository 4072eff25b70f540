"""How training is spread over devices and processes: one strategy a file, all behind one protocol."""
