"""Where a server listens, and what is said where it cannot."""

import socket

import pytest

from ricordo.cli.sockets import address_of, listening
from ricordo.errors import Unavailable


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("192.0.2.1", "192.0.2.1 is not an address of this machine"),
        ("nowhere.invalid", 'The host "nowhere.invalid" is unknown'),
    ],
)
def test_a_host_that_is_not_here_is_refused_in_a_sentence(host: str, sentence: str) -> None:
    with pytest.raises(Unavailable, match=sentence), listening(host, 0):
        pass


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Unavailable, match=f"Port {port} of 127.0.0.1 is in use"), listening("127.0.0.1", port):
            pass


def test_every_address_of_a_name_gets_the_same_port_and_gives_it_back() -> None:
    with listening("localhost", 0) as sockets:
        (port,) = {opened.getsockname()[1] for opened in sockets}
        assert port != 0
        assert "127.0.0.1" in {opened.getsockname()[0] for opened in sockets}
    with listening("localhost", port):
        pass


def test_addresses_are_written_so_that_they_can_be_called() -> None:
    assert address_of("0.0.0.0", 80) == "http://127.0.0.1:80"  # noqa: S104
    assert address_of("::1", 80) == "http://[::1]:80"
    assert address_of("nina.local", 8283) == "http://nina.local:8283"
