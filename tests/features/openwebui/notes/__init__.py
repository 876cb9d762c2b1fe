"""Tests of notes."""
