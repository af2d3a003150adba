"""Property-based verification of data-parallel training.

The way the data goes, and the order to read the modules in:

    strategies -> case -> ranks -> evidence -> oracle, invariants -> verdict -> trial, report

Importing this package imports neither torch nor Hypothesis: the same code is
loaded by the controller (no torch) and by the ranks (no Hypothesis).
"""

__version__ = "0.1.0"
