"""Implementations that are composed instead of written: a host, a fault and a trigger of the fault.

A composed wrapper owes its correctness to the reference, whose parts it keeps. Its kind says how the
loop calls it (`wrapper`, `kinds`). Its host says which gradients travel together, when they are
sent, by which collectives they are summed, and when the sum is divided. Its fault alters one seam of
the wrapper, on the occasions that its trigger accepts. Without a fault it is right. `witness` shows
in plain torch which compositions are wrong.
"""
