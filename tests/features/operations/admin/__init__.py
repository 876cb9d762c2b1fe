"""Tests of health checks, metrics and outages."""
