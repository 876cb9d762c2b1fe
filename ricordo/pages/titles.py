"""Titles of memory blocks in words for people."""


def title_of(label: str, title: str | None, owner_name: str, *, is_self: bool) -> str:
    """Return a block's title for people.

    A block of one agent has the agent's folder in its label, which is left out.
    """
    if title:
        return title
    parts = label.split("/")
    if parts[0] == "agents" and len(parts) > 2:
        parts = parts[2:]
    if parts[-1].casefold() in ("human", "user", "student", "person"):
        return "About me" if is_self else f"About {owner_name}"
    words = " / ".join(part.replace("_", " ").replace("-", " ") for part in parts)
    return words[:1].upper() + words[1:]
