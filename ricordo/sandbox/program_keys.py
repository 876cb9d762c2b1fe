"""Keys of this server for programs in the sandbox. Each is valid while its program runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from secrets import token_urlsafe

from ricordo.domain.scope import Scope

PREFIX = "ricordo_call_"
_SCOPES = frozenset(
    f"{family}:{kind}"
    for family in ("agents", "messages", "memory", "archives", "tools")
    for kind in ("read", "write")
)


class ProgramKeys:
    """The valid keys, with the scope of each."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}

    @contextmanager
    def issue(self, scope: Scope, tool: str) -> Iterator[str]:
        """Provide a key for a tool's program, while the block runs.

        With the key, the program sees no more than the caller and may do less. It cannot decide on
        proposals, act for another user, or manage users, keys or providers. The history names the
        tool in addition to the caller.
        """
        key = PREFIX + token_urlsafe(32)
        self._scopes[key] = replace(scope, scopes=scope.scopes & _SCOPES, caller=f"the tool {tool}")
        try:
            yield key
        finally:
            del self._scopes[key]

    def scope_of(self, key: str) -> Scope | None:
        return self._scopes.get(key)
