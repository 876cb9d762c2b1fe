"""Tests of the sync with Open WebUI."""
