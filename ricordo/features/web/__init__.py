"""Pages for people: the server"s own, the API"s documentation, and help."""

PARTS = ("api_docs", "help", "pages")
REQUIRES = ("memory_care",)
