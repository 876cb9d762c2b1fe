"""Care of memory: erasure, audit and review."""

PARTS = ("audit", "erasure", "review")
