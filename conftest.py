"""The entry point of the suite's pytest plugin, which is in `ddp_invariants.plugin`."""

pytest_plugins = ["ddp_invariants.plugin"]
