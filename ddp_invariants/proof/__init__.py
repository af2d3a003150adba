"""The judge itself measured, on the planted faults and the controls of `faults/`."""
