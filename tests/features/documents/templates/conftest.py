"""A stage for tests of templates on both databases."""

from tests.agents.conftest import open_stage, stage

__all__ = ["open_stage", "stage"]
