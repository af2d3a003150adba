"""The probable cause of a failure, with the numbers that show it; an unknown cause stays unknown.

[Note: causes] A cause is an explanation that predicts a value. A cause fits under two conditions.
It predicts, within rounding, every wrong element on every rank that holds one. Its prediction
differs from the right value.

A failure is reported with a cause in two cases only. Either no other cause fits, or larger cases of
the same rule's failure exclude all others (`search/enlarge.py`). The smallest case is one parameter of one
element on two ranks. There, a sum is also twice the mean, and the largest value is also some rank's
value. A wrong cause is worse than none.
"""
