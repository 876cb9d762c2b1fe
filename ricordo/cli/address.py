"""How the address of a server on this machine is written."""

EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


def address_of(host: str, port: int) -> str:
    """The address to call a server by that listens on this host."""
    name = "127.0.0.1" if host in EVERY_ADDRESS else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
