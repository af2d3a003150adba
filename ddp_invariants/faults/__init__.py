"""Planted faults and right controls, to prove the judge: a module for each style, and for what goes wrong in it.

A module's docstring starts with the style. Every public class or function is one entry, whose
docstring is its record. A control says `Right: what it is.` A fault says what is wrong, where it
really happened, which rule must notice, and the words
of the diagnosis, where the evidence shows one: `What is wrong (where). RULE: words.` Where it shows
in two ways that have nothing to do with one another (buckets of equal sizes sent in another order
are mixed, of others they are a mismatch): `RULE: words; or RULE: words.` `catalogue.py` reads them
without importing anything.
"""
