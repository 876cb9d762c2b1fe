"""Tests of agents that work together."""
