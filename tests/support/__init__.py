"""Helpers of the tests: scripted servers, databases, processes and campaigns."""
