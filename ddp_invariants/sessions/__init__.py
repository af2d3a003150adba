"""A session of judging: how it is begun, watched while it runs, and what it leaves behind."""
