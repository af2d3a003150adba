"""Discovery: which capabilities an implementation offers, and what cases may therefore contain."""
