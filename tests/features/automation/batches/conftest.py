"""A running server with its clients."""

from tests.seams.jobs import quick_jobs

__all__ = ["quick_jobs"]
