"""The sockets that a server listens on, and its address as a URL."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ricordo.errors import Unavailable

EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - only compared with, not bound to


def address_of(host: str, port: int) -> str:
    name = "127.0.0.1" if host in EVERY_ADDRESS else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Open sockets for all addresses of the host on one port.

    They are closed at the end of the block. Raises Unavailable.
    """
    with ExitStack() as opened:
        sockets: list[socket.socket] = []
        absent: OSError | None = None
        for family, name in addresses_of(host):
            # With port 0 the system chooses the port of the first socket; the others use it too.
            socket_port = sockets[0].getsockname()[1] if sockets and not port else port
            try:
                server_socket = socket.create_server(
                    (name, socket_port), family=family, backlog=2048
                )
                sockets.append(opened.enter_context(server_socket))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise Unavailable(_reason(error, host, socket_port)) from None
                # "localhost" may have an IPv6 address that this machine does not support.
                absent = error
        if absent and not sockets:
            raise Unavailable(_reason(absent, host, port))
        yield sockets


def addresses_of(host: str) -> list[tuple[int, str]]:
    """Return the address family and the text of each address of a host. Raises Unavailable."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise Unavailable(
            f'The host "{host}" is unknown: {error.strerror}. Choose another with --host or '
            "RICORDO_HOST, such as 127.0.0.1."
        ) from None
    families_and_names = ((family, str(address[0])) for family, _, _, _, address in addresses)
    return list(dict.fromkeys(families_and_names))


def _reason(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Port {port} of {host} is in use, perhaps by another Ricordo. Stop it, or choose "
                "another port with --port or RICORDO_PORT."
            )
        case errno.EACCES:
            return (
                f"This user may not listen on port {port}. Choose one above 1023 with --port or "
                "RICORDO_PORT."
            )
        case errno.EADDRNOTAVAIL:
            return (
                f"{host} is not an address of this machine. Choose another with --host or "
                "RICORDO_HOST."
            )
    return f"Ricordo cannot listen on {host}, port {port}: {error.strerror}."
