"""Schedules: messages that are sent to an agent later, once or repeatedly."""
