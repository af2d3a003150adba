"""Two interpreters compared: the gate of an upgrade."""
