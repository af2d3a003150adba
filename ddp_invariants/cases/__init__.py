"""A case: a model, data, an optimizer and a program, which together fix a run. Imports neither torch nor Hypothesis."""
