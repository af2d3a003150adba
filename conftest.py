"""Loads the suite's pytest plugin; everything else is in `ddp_invariants.plugin`."""

pytest_plugins = ["ddp_invariants.plugin"]
