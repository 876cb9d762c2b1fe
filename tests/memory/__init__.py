"""Tests of ricordo/memory."""
