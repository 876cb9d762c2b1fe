"""Learner state."""
