"""Tests of ricordo/prompt."""
