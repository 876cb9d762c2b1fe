"""The tables, written once for both databases. A change here is a new numbered migration too."""
