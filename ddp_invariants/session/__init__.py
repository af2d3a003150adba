"""One session of judging: its state, progress, outputs and exit status."""
