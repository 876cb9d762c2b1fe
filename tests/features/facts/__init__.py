"""Tests of facts about users."""
