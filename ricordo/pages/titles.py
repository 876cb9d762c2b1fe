"""Titles of memory blocks for people."""


def title_of(label: str, title: str | None, owner_name: str, *, is_self: bool) -> str:
    """Return a block's title for people.

    Args:
        label: The block's label. That of a block of one agent starts with the agent's folder, which
            is left out.
        title: The title that a person gave the block. None or "" makes one from the label.
        owner_name: The name of the user whose memory it is.
        is_self: The reader of the title is this user.
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
