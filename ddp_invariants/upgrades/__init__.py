"""The gate of an upgrade: a comparison of two interpreters."""
