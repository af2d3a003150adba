"""The properties, one module for each invariant: they read as the specification."""
