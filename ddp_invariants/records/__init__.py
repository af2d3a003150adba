"""Frozen records: evidence, traces of collectives, verdicts and stored violations."""
