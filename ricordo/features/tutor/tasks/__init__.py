"""Background tasks: an agent's work for each user at set times or after silence."""
