"""Memory: the step's working copy, storing its edits, recall and the archive."""
