"""Questions about people: memories, answers with sources, and Honcho."""

PARTS = ("ask", "honcho", "memories")
