"""Tests of the measuring code of the benches."""
