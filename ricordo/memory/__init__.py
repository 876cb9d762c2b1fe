"""What memory does: the step's working copy of it, how its edits are stored, recall and archive."""
