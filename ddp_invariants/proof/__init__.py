"""Measurements of the judge itself, on the faults and controls of `faults/`."""
