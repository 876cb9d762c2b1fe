"""Tests of ricordo.integrations."""
