"""Tests of the documentation pages of a server."""
