"""`python -m ddp_invariants` is `ddp-invariants`."""

from ddp_invariants.cli import main

main(prog_name="ddp-invariants")
