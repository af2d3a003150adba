"""What a session certifies, as a file and a page, and how one is rechecked."""
