"""The fault catalogue: wrappers and samplers in the styles of the field, each right first, then with one thing wrong at a time.

A module is a style. Every public class or function in it can be put on trial by its name and says in its docstring what is
right or wrong about it, where that has happened, and which rule must name it with which cause.
"""
