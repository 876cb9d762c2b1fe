"""Titles of memory blocks for people."""


def title_of(label: str, title: str | None, owner_name: str, *, is_self: bool) -> str:
    """Return a block's title for people.

    The label of a block of one agent starts with the agent's folder, which is left out.
    """
    if title:
        return title
    parts = label.split("/")
    if parts[0] == "agents" and len(parts) > 2:
        parts = parts[2:]
    if parts[-1].casefold() in ("human", "user", "student", "person"):
        return "About me" if is_self else f"About {owner_name}"
    heading = " / ".join(part.replace("_", " ").replace("-", " ") for part in parts)
    return heading[:1].upper() + heading[1:]
