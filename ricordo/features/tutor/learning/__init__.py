"""Learner state: a student's skills with their evidence, and the reviews that are due."""
