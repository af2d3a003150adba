"""A violation as a script of plain torch."""
