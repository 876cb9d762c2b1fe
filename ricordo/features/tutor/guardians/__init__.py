"""Guardians, who see those skills of a student that the student or the course lets them see."""
