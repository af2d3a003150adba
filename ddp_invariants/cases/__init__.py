"""A case: a model, data, an optimizer and a program, which together fix a run.

This package imports neither torch nor Hypothesis.
"""
