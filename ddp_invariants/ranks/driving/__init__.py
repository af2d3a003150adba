"""The calls with which a rank drives the implementation under test."""
