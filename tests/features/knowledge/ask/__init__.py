"""Tests of questions about users."""
