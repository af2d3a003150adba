"""`python -m ddp_invariants` is `ddp-invariants`."""

from ddp_invariants.cli.entry import run

run()
