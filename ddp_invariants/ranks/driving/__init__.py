"""How a rank calls the implementation under test."""
