"""Authors as git writes them, `<name> <<address>>`, and back: one mapping for commits, branches of proposals, git and Dolt remotes.

A plain address is the author's id, `user-…@ricordo`. The parts of others are written out, as `<kind>+<id>@ricordo`, or
`<kind>+<id>+<name>@ricordo` where git cannot hold the name as it is, so that each author can be read back exactly.
"""

import re
from functools import lru_cache
from typing import cast, get_args
from urllib.parse import quote, unquote

from ricordo.domain.scope import Actor, ActorKind

DOMAIN = "@ricordo"
_USER, _SYSTEM = "user-", "ricordo"
_KINDS = frozenset(get_args(ActorKind))
_ONCE_PLAIN = ("user", "agent", "system")
# Git refuses these in names, and what it would cut off at their ends must not be all of one.
_NOT_IN_NAMES = re.compile(r"[<>\x00-\x1f\x7f]+")
_AT_ENDS = " .,:;\"'\\"
_SAFE = "/"


@lru_cache(512)
def signature(actor: Actor) -> str:
    """The author as a commit names them, without the time.

    >>> signature(Actor("agent", "agent-1", "Nina")), signature(Actor("remote", "Bo", "Bo"))
    ('Nina <agent-1@ricordo>', 'Bo <remote+Bo@ricordo>')
    """
    name, address = _split(plain_signature(actor))
    if actor.kind in _ONCE_PLAIN and author_of(name, address) == actor:
        return f"{name} <{address}>"
    local = f"{actor.kind}+{_quoted(actor.id)}"
    if author_of(name, local + DOMAIN) != actor:
        local += f"+{_quoted(actor.name)}"
    return f"{name} <{local}{DOMAIN}>"


def plain_signature(actor: Actor) -> str:
    """What `signature` was for every author at first, and is where it can be read back. Stored versions may have ids made of it."""
    name = _NOT_IN_NAMES.sub(" ", actor.name or actor.id).strip(_AT_ENDS) or actor.kind
    mail = re.sub(r"[^\w.+@/-]+", "-", actor.id) or actor.kind
    return f"{name} <{mail}{DOMAIN}>"


def author_of(name: str, address: str) -> Actor | None:
    """The author whom a commit names; None where the address is none of Ricordo's.

    >>> author_of("Nina", "agent-1@ricordo"), author_of("Ada", "ada@home.example")
    (Actor(kind='agent', id='agent-1', name='Nina'), None)
    """
    local = address.removesuffix(DOMAIN)
    if local == address:
        return None
    kind, *parts = local.split("+")
    if kind in _KINDS and len(parts) in (1, 2):
        id, *written = map(unquote, parts)
        return Actor(cast(ActorKind, kind), id, written[0] if written else name)
    if local.startswith(_USER):
        return Actor("user", local, name)
    return Actor("system" if local == _SYSTEM else "agent", local, name)


def _split(written: str) -> tuple[str, str]:
    name, _, address = written[:-1].rpartition(" <")
    return name, address


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE)
