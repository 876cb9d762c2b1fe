"""Pages for people: the server's own, the documentation of the API, and help.

They load nothing from other hosts.
"""

PARTS = ("api_docs", "help", "pages")
REQUIRES = ("memory_care",)
