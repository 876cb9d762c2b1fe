"""Tests of the documentation that a server shows."""
