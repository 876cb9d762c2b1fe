"""Lines and bands: what is read of a push, and what is told of it."""

import pytest

from ricordo.errors import Invalid
from ricordo.features.git.protocol import line, push_advertisement, push_report, read_push
from ricordo.features.git.receiver import PushCommand, PushOutcome

MAIN, ONE, TWO = b"refs/heads/main", b"\x11" * 20, b"\x22" * 20


def test_a_push_is_read() -> None:
    body = (
        line(b"shallow " + ONE.hex().encode())
        + line(f"{ONE.hex()} {TWO.hex()} refs/heads/main\0 report-status side-band-64k agent=git/2".encode())
        + line(f"{'0' * 40} {TWO.hex()} refs/heads/propose/x\n".encode())
        + line(f"{ONE.hex()} {'0' * 40} refs/tags/y".encode())
        + b"0000PACK..."
    )
    request = read_push(body)
    assert request.commands == (
        PushCommand(ONE, TWO, MAIN),
        PushCommand(None, TWO, b"refs/heads/propose/x"),
        PushCommand(ONE, None, b"refs/tags/y"),
    )
    assert request.capabilities == {b"report-status", b"side-band-64k", b"agent=git/2"}
    assert request.pack == b"PACK..."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"000",
        b"+0f0",
        b"0003",
        b"0004",
        b"00ffabc",
        line(b"abc") + b"0000",
        line(ONE.hex().encode() + b" " + TWO.hex().encode() + b" main") + b"0000",
        line(ONE.hex().encode() + b" " + TWO.hex().encode() + b" refs/a b") + b"0000",
        line(b"x" * 40 + b" " + TWO.hex().encode() + b" refs/heads/main") + b"0000",
        line(f"{ONE.hex()} {TWO.hex()} refs/heads/main".encode()),
        line(f"{ONE.hex()} {TWO.hex()} refs/heads/main".encode()) * 101 + b"0000",
    ],
)
def test_what_is_no_push_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        read_push(body)


def test_what_there_is_stands_before_a_push() -> None:
    told = push_advertisement([(MAIN, ONE)])
    assert told.startswith(b"001f# service=git-receive-pack\n0000")
    assert ONE.hex().encode() + b" refs/heads/main\0report-status side-band-64k" in told
    assert b"0" * 40 + b" capabilities^{}\0" in push_advertisement([])


def test_what_became_of_a_push_is_told_in_two_bands_or_in_one() -> None:
    outcomes = [PushOutcome(MAIN, None, ("Done.",)), PushOutcome(b"refs/tags/x", "No\n tags", ("One.", "Two."))]
    report = line(b"unpack ok\n") + line(b"ok refs/heads/main\n") + line(b"ng refs/tags/x No tags\n") + b"0000"
    assert b"".join(push_report(outcomes, frozenset())) == report
    told = b"".join(push_report(outcomes, frozenset({b"side-band-64k"})))
    assert told == (line(b"\2Done.\n") + line(b"\2One.\n") + line(b"\2Two.\n") + line(b"\1" + report) + b"0000")
    assert b"".join(push_report([], frozenset(), "Bad\npack")) == line(b"unpack Bad pack\n") + b"0000"
