"""Planted faults and right controls, to prove the judge: a module for each style of implementation and what goes wrong in it.

Every public class or function is one entry, whose docstring is its record. A control says `Right: what it is.` A fault says
what is wrong, where it really happened, which rule must notice, and the words of the cause that must be named, where the
evidence shows one: `What is wrong (where). RULE: words.` `catalogue.py` reads them without importing anything.
"""
