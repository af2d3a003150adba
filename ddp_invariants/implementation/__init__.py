"""The implementation under test: its name, its adapter and its declarations."""
