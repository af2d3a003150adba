"""Reports: text for the terminal, JSON for machines, and certificates."""
