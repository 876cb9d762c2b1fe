"""A stage with a runtime, as turns have it."""

from tests.agents.conftest import open_stage, stage
from tests.seams.jobs import quick_jobs

__all__ = ["open_stage", "quick_jobs", "stage"]
