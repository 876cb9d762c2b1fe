"""Behaviour of agents as clients see it.

Tests use the HTTP API and scripted model servers, both over real HTTP.
"""
