"""Traces over HTTP: requests and replies of model calls.

The core stores them with the steps if the settings say so.
"""
