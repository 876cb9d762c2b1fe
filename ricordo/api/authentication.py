"""Who a request is from: a key, the cookie of a login, or nobody where this server has no keys."""

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from ipaddress import ip_network
from math import ceil
from pathlib import Path
from secrets import token_urlsafe
from typing import NamedTuple, TypeVar

from ricordo.domain.clock import SECOND
from ricordo.domain.scope import OPERATOR_SCOPES, Limits, Scope
from ricordo.errors import Invalid
from ricordo.runtime import Runtime
from ricordo.secret import OPERATOR, Secret, is_operator_token
from ricordo.settings import LOOPBACK, Settings
from ricordo.storage import keys
from ricordo.storage.keys import ApiKey

log = logging.getLogger(__name__)
V = TypeVar("V")
# Seconds for which an answer of the database counts, so that every process sees a revocation within a second.
_FRESH = 0.9
_MOST_CACHED = 10_000
# How often the time of a key's last use is written.
_USE_NOTED = 60 * SECOND
# How the token begins by which a browser stands for a key, and for how many seconds it does.
_SESSION, SESSION_SECONDS, _SESSION_LEEWAY = "ricordo_session_", 12 * 3600, 24 * 3600
# Unknown keys of one address within so many seconds; after them it waits so many seconds for each answer.
MOST_FAILURES, _FAILURES_COUNT, DELAY = 20, 60.0, 1.0
# How the key begins with which a tool's program asks, and those that count, with the data folder of their server.
CALL = "ricordo_call_"
_calls: dict[tuple[Path, str], Scope] = {}
_WORK = frozenset(
    f"{family}:{kind}"
    for family in ("agents", "messages", "memory", "archives", "tools")
    for kind in ("read", "write")
)
_MINUTE = 60
_LOCAL = Scope()
_ADMINISTRATOR = Scope(user_name="administrator", scopes=OPERATOR_SCOPES, caller="administrator")


class _Known(NamedTuple):
    key: ApiKey
    scope: Scope
    until: float


class _Failures(NamedTuple):
    since: float
    times: int


@contextmanager
def key_for_call(settings: Settings, scope: Scope, tool: str) -> Iterator[str]:
    """A key of this server for the program of a tool, for as long as the block lasts.

    It sees what the caller sees, and may do less: it decides on no proposals, acts for nobody else, and manages no users, keys and
    providers. History names the tool beside the caller.
    """
    key = settings.data_dir, CALL + token_urlsafe(32)
    _calls[key] = replace(scope, scopes=scope.scopes & _WORK, caller=f"the tool {tool}")
    try:
        yield key[1]
    finally:
        del _calls[key]


class RequestLimits:
    """Counts the requests of each key in a token bucket: a whole minute's at once, and then as they come back."""

    def __init__(self, settings: Settings) -> None:
        self._per_minute = settings.key_requests_per_minute
        # By name what is left, and when it was.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, limits: Limits, now: float | None = None) -> int:
        """Count a request.

        Returns 0, or in how many seconds the next one is let in where this one is not.
        """
        per_minute = limits.requests_per_minute or self._per_minute
        if per_minute is None:
            return 0
        now = time.monotonic() if now is None else now
        left, since = self._buckets.get(limits.name, (per_minute, now))
        left = min(per_minute, round(left + (now - since) * per_minute / _MINUTE, 6))
        is_allowed = left >= 1
        self._buckets[limits.name] = (left - 1 if is_allowed else left), now
        self._buckets.move_to_end(limits.name)
        if len(self._buckets) > _MOST_CACHED:
            self._buckets.popitem(last=False)
        return 0 if is_allowed else max(1, ceil(round((1 - left) * _MINUTE / per_minute, 3)))


class Authentication:
    """Knows by a key who asks.

    What the database says of keys is cached for less than a second.
    """

    def __init__(self, settings: Settings) -> None:
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key else None
        self._host = settings.host
        self._data_dir = settings.data_dir
        self._has_login = settings.oidc_issuer is not None
        self._secret = Secret(settings.data_dir)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        # Keys that the database did not know, with how long that counts.
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._are_keys = False
        self._asked_until = 0.0
        self._writing: set[asyncio.Task[None]] = set()
        # Grows with each change, so that what was asked before is not cached after it.
        self._changes = 0

    @cached_property
    def secret(self) -> bytes:
        """The key that API keys are hashed with."""
        return self._secret.derive("api keys")

    async def scope_of(self, runtime: Runtime, key: str, *, is_near: bool = False) -> Scope | None:
        """Return what this key may see and do.

        None where it is unknown, expired or revoked, or its user disabled.

        `is_near` says that the caller is on this machine: there the operator's tokens count too.
        """
        if self._key is not None and hmac.compare_digest(
            key.encode("utf-8", "surrogatepass"), self._key
        ):
            return _ADMINISTRATOR
        if key.startswith(OPERATOR):
            return _ADMINISTRATOR if is_near and is_operator_token(self._secret, key) else None
        digest = self._digest_of(key)
        if digest is None:
            return _calls.get((self._data_dir, key))
        if self._key is not None and hmac.compare_digest(
            digest, keys.hash_of(self.secret, self._key.decode())
        ):
            return _ADMINISTRATOR  # a session of the key in the settings
        now = time.monotonic()
        known = self._known.get(digest)
        if self._unknown.get(digest, 0) > now:
            return None
        if known is None or known.until < now:
            changes = self._changes
            found = await runtime.store.read(lambda tx: keys.authenticate(tx, digest))
            if found is None:
                self._known.pop(digest, None)
                if changes == self._changes:
                    _keep(self._unknown, digest, now + _FRESH)
                return None
            if changes != self._changes:  # asked again with the next request
                return found[1]
            known = _keep(self._known, digest, _Known(*found, now + _FRESH))
            self._note_use(runtime, known.key)
        expires_at = known.key.expires_at
        return known.scope if expires_at is None or runtime.store.clock.now() < expires_at else None

    def open_session(self, key: str) -> str:
        """Return a token that stands for this key for twelve hours, or until the key is revoked; the key cannot be read from it."""
        text = f"{keys.hash_of(self.secret, key)}_{int(time.time()) + SESSION_SECONDS}"
        return f"{_SESSION}{text}_{self._sign(text)}"

    def _digest_of(self, key: str) -> str | None:
        """The hash of the key, or of the one that a session stands for.

        None for what is neither.
        """
        if not key.startswith(_SESSION):
            is_stored = key.startswith(keys.PREFIX) and not key.startswith(CALL)
            return keys.hash_of(self.secret, key) if is_stored else None
        text, _, signature = key.removeprefix(_SESSION).rpartition("_")
        if not hmac.compare_digest(
            signature.encode("utf-8", "surrogatepass"), self._sign(text).encode()
        ):
            return None
        digest, _, until = text.partition("_")
        left = int(until) - time.time()
        return (
            digest if 0 < left <= SESSION_SECONDS + _SESSION_LEEWAY else None
        )  # more: by a clock that was wrong

    def _sign(self, text: str) -> str:
        return hmac.digest(
            self._secret.derive("sessions"), text.encode("utf-8", "surrogatepass"), "sha256"
        ).hex()

    async def slow_down(self, address: str, key: str) -> None:
        """Wait before an unknown key of this address is looked up, where many were unknown within a minute."""
        failures = self._failures.get(_network(address))
        if (
            failures is None
            or failures.times < MOST_FAILURES
            or time.monotonic() - failures.since > _FAILURES_COUNT
        ):
            return
        is_operators = self._key is not None and hmac.compare_digest(
            key.encode("utf-8", "surrogatepass"), self._key
        )
        # A key that was right before is not slowed down by others at its address.
        if not is_operators and keys.hash_of(self.secret, key) not in self._known:
            await asyncio.sleep(DELAY)

    def note_failure(self, address: str) -> None:
        """Count an unknown key against the address it came from."""
        network, now = _network(address), time.monotonic()
        failures = self._failures.get(network)
        if failures is None or now - failures.since > _FAILURES_COUNT:
            failures = _Failures(now, 0)
        _keep(self._failures, network, failures._replace(times=failures.times + 1))

    async def local(self, runtime: Runtime | None, *, asks: bool = True) -> Scope | None:
        """Return the local administrator, as long as there is no key of any kind, no login, and only this machine can call.

        Unless it `asks`, what the database said last counts, so that nobody waits for it.
        """
        if self._key is not None or self._has_login or self._host not in LOOPBACK:
            return None
        if runtime is None:
            return _LOCAL
        now = time.monotonic()
        if asks and not self._are_keys and self._asked_until < now:
            self._are_keys = await runtime.store.read(keys.are_any)
            self._asked_until = now + _FRESH
        return None if self._are_keys else _LOCAL

    async def require_key(self, runtime: Runtime) -> None:
        """Raise Invalid where other machines could call a server that has no key."""
        if (
            self._host in LOOPBACK
            or self._key is not None
            or await runtime.store.read(keys.are_any)
        ):
            return
        raise Invalid(
            f"RICORDO_HOST={self._host} can be reached from other machines, so a key is needed. Make one with `ricordo key "
            "create --user NAME --role admin`, or set RICORDO_API_KEY."
        )

    def forget(self) -> None:
        """Ask the database again, after keys or users were changed here."""
        self._changes += 1
        self._known.clear()
        self._unknown.clear()
        self._asked_until = 0.0

    def _note_use(self, runtime: Runtime, key: ApiKey) -> None:
        used_at = key.last_used_at
        if used_at is not None and 0 <= runtime.store.clock.now() - used_at < _USE_NOTED:
            return
        task = asyncio.ensure_future(_note_use(runtime, key))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _keep(cache: OrderedDict[str, V], name: str, value: V) -> V:
    """Store the value as the newest of the cache, whose oldest it drops where it is full."""
    cache[name] = value
    cache.move_to_end(name)
    if len(cache) > _MOST_CACHED:
        cache.popitem(last=False)
    return value


def _network(address: str) -> str:
    """The address, or the network of an IPv6 address: one client has as many of those as it likes."""
    try:
        return str(ip_network((address, 64), strict=False)) if ":" in address else address
    except ValueError:
        return address


async def _note_use(runtime: Runtime, key: ApiKey) -> None:
    try:
        await runtime.store.write(lambda tx: keys.note_use(tx, key))
    except Exception:
        # The request goes on without: the next one notes it.
        log.warning("the use of a key could not be noted", extra={"key": key.id}, exc_info=True)
