"""A stage with a runtime, as turns have it."""

from tests.agents.conftest import open_stage, stage

__all__ = ["open_stage", "stage"]
