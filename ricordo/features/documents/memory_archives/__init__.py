"""Export one person's whole memory as a zip archive, and restore it on another server."""
