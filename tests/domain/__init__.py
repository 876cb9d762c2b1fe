"""Tests of ricordo/domain."""
