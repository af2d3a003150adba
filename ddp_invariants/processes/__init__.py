"""The processes that run ranks: hosts, pools and jobs. Imports no torch."""
