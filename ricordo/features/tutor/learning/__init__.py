"""Learner state: what a student can do, by evidence, and what is due for review."""
