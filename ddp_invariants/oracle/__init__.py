"""The oracle: training recomputed in float64 with derived error bounds. Imports no torch."""
