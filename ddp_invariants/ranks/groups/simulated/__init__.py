"""A simulated world: all ranks are threads of one process, and exactly one runs at any time."""
