"""The audit of memory."""
