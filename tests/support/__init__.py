"""Helpers of the tests besides the product: scripted servers, databases, processes, campaigns."""
