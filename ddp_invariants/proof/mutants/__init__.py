"""Mutants of real code: an implementation's source with one small change, judged by all rules."""
