"""One person's whole memory as a zip archive: out of one server, and into another."""
