"""The search for violations: draw a case, run it, judge it, shrink it, confirm it."""
