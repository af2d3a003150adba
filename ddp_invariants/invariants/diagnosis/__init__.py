"""Name the probable cause of a breach, with the numbers that show it. Unknown stays unknown.

[Note: causes] A cause is an explanation that predicts a value. It fits where it predicts every
wrong element on every rank that holds a wrong one, within rounding, and the right value does not. A
breach is told with a cause only where no other fits, or where larger cases of the same breach rule
all others out (`telling.py`): in the smallest case, which is one parameter of one element on two
ranks, a sum is as well twice the mean, and the largest value is some rank's. A wrong cause is worse
than none.
"""
