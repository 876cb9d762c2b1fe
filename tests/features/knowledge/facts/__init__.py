"""Tests of facts about users."""

SHARED_ROUTES = "(GET|PUT) /v1/facts/policy"
