"""The pages of the documentation at `/help`."""
