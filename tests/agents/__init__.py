"""One turn of an agent on a real database, with a scripted model."""
