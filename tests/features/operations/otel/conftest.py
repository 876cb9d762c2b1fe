"""Jobs that are looked for often."""

from tests.seams.jobs import quick_jobs

__all__ = ["quick_jobs"]
