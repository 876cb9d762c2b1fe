"""Work at set times and in bulk: schedules and batches."""

PARTS = ("batches", "schedules")
