"""Guardians: people who see a student's skills, as far as the student or the course allows it."""
