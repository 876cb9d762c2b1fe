"""Erasure: forgetting a user."""
