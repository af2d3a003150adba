"""How a command ends: its exit status. Nothing is imported here, so that the help is quick and an early interrupt is told."""

CERTIFIED, VIOLATED, INCONCLUSIVE = 0, 1, 2
"""Exit statuses of a judgement."""

USAGE = 64
"""Exit status where nothing was judged because of what was asked: an option, a name or a file (`EX_USAGE` of sysexits)."""

INTERRUPTED = 130
"""Exit status after an interrupt, as a shell gives it."""
