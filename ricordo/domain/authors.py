"""Authors in git's form `<name> <<address>>`, in both directions.

Commits, branches of proposals, and git and Dolt remotes all use this mapping. The plain address of
a user, an agent or the system has only the id, as in `user-…@ricordo`. Other authors are written as
`<kind>+<id>@ricordo`. If git cannot hold the name, the address is `<kind>+<id>+<name>@ricordo`. So
each author can be read back exactly.
"""

import re
from functools import lru_cache
from typing import cast, get_args
from urllib.parse import quote, unquote

from ricordo.domain.scope import Actor, ActorKind

DOMAIN = "@ricordo"
_USER = "user-"
_SYSTEM = "ricordo"
_KINDS = frozenset(get_args(ActorKind))
_PLAIN_KINDS = ("user", "agent", "system")
# Git refuses these characters in names. It also strips the characters of _AT_ENDS from both ends,
# so a name must have others.
_NOT_IN_NAMES = re.compile(r"[<>\x00-\x1f\x7f]+")
_AT_ENDS = " .,:;\"'\\"
_SAFE = "/"


@lru_cache(512)
def signature(actor: Actor) -> str:
    """Return the author's line in a commit, without the time.

    >>> signature(Actor("agent", "agent-1", "Nina")), signature(Actor("remote", "Bo", "Bo"))
    ('Nina <agent-1@ricordo>', 'Bo <remote+Bo@ricordo>')
    """
    name, address = _split(plain_signature(actor))
    if actor.kind in _PLAIN_KINDS and author_of(name, address) == actor:
        return f"{name} <{address}>"
    local = f"{actor.kind}+{_quoted(actor.id)}"
    if author_of(name, local + DOMAIN) != actor:
        local += f"+{_quoted(actor.name)}"
    return f"{name} <{local}{DOMAIN}>"


def plain_signature(actor: Actor) -> str:
    """Return the author's plain form, which cannot always be read back.

    The first version of `signature` wrote all authors in this form. `signature` still uses it if
    the author can be read back from it. The ids of stored versions may depend on it.
    """
    name = _NOT_IN_NAMES.sub(" ", actor.name or actor.id).strip(_AT_ENDS) or actor.kind
    mail = re.sub(r"[^\w.+@/-]+", "-", actor.id) or actor.kind
    return f"{name} <{mail}{DOMAIN}>"


def author_of(name: str, address: str) -> Actor | None:
    """Return the author that a commit names; None if the address is not Ricordo's.

    >>> author_of("Nina", "agent-1@ricordo"), author_of("Ada", "ada@home.example")
    (Actor(kind='agent', id='agent-1', name='Nina'), None)
    """
    local = address.removesuffix(DOMAIN)
    if local == address:
        return None
    kind, *parts = local.split("+")
    if kind in _KINDS and len(parts) in (1, 2):
        id, *quoted_names = map(unquote, parts)
        return Actor(cast(ActorKind, kind), id, quoted_names[0] if quoted_names else name)
    if local.startswith(_USER):
        return Actor("user", local, name)
    return Actor("system" if local == _SYSTEM else "agent", local, name)


def _split(signature: str) -> tuple[str, str]:
    name, _, address = signature[:-1].rpartition(" <")
    return name, address


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE)
