"""Certificates: the JSON document, its page and its verification."""
