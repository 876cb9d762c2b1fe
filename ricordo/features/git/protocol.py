"""What git clients and servers say to each other when they push: lines with their length before them, and bands of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ricordo.errors import Invalid
from ricordo.features.git.receiver import PushCommand, PushOutcome

FLUSH = b"0000"
ZERO = b"0" * 40
PACK, NEWS = b"\1", b"\2"
_CAPABILITIES = b"report-status side-band-64k delete-refs ofs-delta object-format=sha1 agent=ricordo"
_MOST_IN_BAND = 65_515
_LENGTH = 4
_HEX = frozenset(b"0123456789abcdef")
_MOST_COMMANDS = 100
_UNREADABLE = "The push cannot be read. Push with git 1.7 or newer."


@dataclass(frozen=True, slots=True)
class PushRequest:
    """A push as it was sent: its commands, what the client understands, and its pack."""

    commands: tuple[PushCommand, ...]
    capabilities: frozenset[bytes]
    pack: bytes


def line(text: bytes) -> bytes:
    return b"%04x" % (len(text) + _LENGTH) + text


def in_band(band: bytes, data: bytes) -> Iterator[bytes]:
    for place in range(0, len(data), _MOST_IN_BAND):
        yield line(band + data[place : place + _MOST_IN_BAND])


def push_advertisement(refs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """What a client reads before it pushes: the branches, by name and id (20 bytes), and what the server understands."""
    named = [id.hex().encode() + b" " + name for name, id in refs] or [ZERO + b" capabilities^{}"]
    lines = [named[0] + b"\0" + _CAPABILITIES, *named[1:]]
    return line(b"# service=git-receive-pack\n") + FLUSH + b"".join(line(each + b"\n") for each in lines) + FLUSH


def read_push(body: bytes) -> PushRequest:
    """A push; raises Invalid where it is none."""
    commands: list[PushCommand] = []
    capabilities: frozenset[bytes] = frozenset()
    place = 0
    while (text := _line_at(body, place)) is not None:
        place += len(text) + _LENGTH
        text, nul, rest = text.partition(b"\0")
        if nul:
            capabilities = frozenset(rest.split())
        if text.startswith(b"shallow "):
            continue  # what a shallow clone lacks is here
        old, new, branch = [*text.rstrip(b"\n").split(b" ", 2), b"", b""][:3]
        if not branch.startswith(b"refs/") or b" " in branch:
            raise Invalid(_UNREADABLE)
        commands.append(PushCommand(_id(old), _id(new), branch))
        if len(commands) > _MOST_COMMANDS:
            raise Invalid(f"This push names more than {_MOST_COMMANDS} branches. Push main alone.")
    return PushRequest(tuple(commands), capabilities, body[place + _LENGTH :])


def push_report(
    outcomes: Sequence[PushOutcome], capabilities: frozenset[bytes], fault: str | None = None
) -> Iterator[bytes]:
    """What the client reads after a push; `fault` is why its pack could not be read."""
    report = line(b"unpack " + (b"ok" if fault is None else _one_line(fault)) + b"\n")
    for outcome in outcomes:
        is_ok = outcome.refusal is None
        status = b"ok " + outcome.branch if is_ok else b"ng " + outcome.branch + b" " + _one_line(outcome.refusal or "")
        report += line(status + b"\n")
    report += FLUSH
    if b"side-band-64k" not in capabilities:
        yield report
        return
    for outcome in outcomes:
        for sentence in outcome.told:
            yield from in_band(NEWS, _one_line(sentence) + b"\n")
    yield from in_band(PACK, report)
    yield FLUSH


def _line_at(body: bytes, place: int) -> bytes | None:
    """The text of the line there, None where there is a flush."""
    head = body[place : place + _LENGTH]
    if len(head) < _LENGTH or not _HEX.issuperset(head.lower()):
        raise Invalid(_UNREADABLE)
    length = int(head, 16)
    if length == 0:
        return None
    if not _LENGTH < length <= len(body) - place:
        raise Invalid(_UNREADABLE)
    return body[place + _LENGTH : place + length]


def _id(text: bytes) -> bytes | None:
    if len(text) != len(ZERO) or not _HEX.issuperset(text):
        raise Invalid(_UNREADABLE)
    return None if text == ZERO else bytes.fromhex(text.decode())


def _one_line(sentence: str) -> bytes:
    return " ".join(sentence.split()).encode()[:1000]
