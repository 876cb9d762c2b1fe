"""A server that checks for jobs often."""

from tests.seams.jobs import quick_jobs

__all__ = ["quick_jobs"]
