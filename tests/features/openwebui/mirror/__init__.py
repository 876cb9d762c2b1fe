"""Tests of what is synced with Open WebUI."""
