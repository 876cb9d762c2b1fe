"""Traces over HTTP: requests and replies of model calls.

The core stores them with the steps, as the settings say.
"""
