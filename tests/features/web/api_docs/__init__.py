"""Tests of the pages of the API."""
