"""Tests of ricordo/tools."""
