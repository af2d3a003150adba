"""Planted faults and right controls: implementations that measure the judge.

A module holds one style of implementation, or the faults of one part of it. The first line of its
docstring names the style.

Every public class or function is one entry, and its docstring is the record of that entry. The
docstring of a control says `Right: what it is.` The docstring of a fault has the form `What is
wrong (where). RULE: words.` It says what is wrong, where that really happened, and which rule must
notice. The words belong to the diagnosis. They are left out if the evidence shows no cause.

A fault may show in several unrelated ways. For example, buckets sent in another order are mixed if
their sizes are equal, and are a mismatch otherwise. Such a docstring ends in `RULE: words; or RULE:
words.`

`proof/catalogue.py` reads these docstrings without importing the modules.
"""
