"""Fixtures of this folder: a stage with the runtime that turns have."""

from tests.agents.conftest import open_stage, stage
from tests.seams.jobs import quick_jobs

__all__ = ["open_stage", "quick_jobs", "stage"]
