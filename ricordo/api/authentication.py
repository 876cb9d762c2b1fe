"""Identify callers: by a key, by a login's cookie, or as local if there are no keys."""

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from functools import cached_property
from ipaddress import ip_network
from math import ceil
from secrets import token_urlsafe
from typing import NamedTuple, TypeVar

from ricordo.domain.clock import SECOND
from ricordo.domain.scope import OPERATOR_SCOPES, Limits, Scope
from ricordo.errors import Invalid
from ricordo.runtime import Runtime
from ricordo.sandbox import program_keys
from ricordo.secret import OPERATOR, Secret, is_operator_token
from ricordo.settings import LOOPBACK, Settings
from ricordo.storage import keys
from ricordo.storage.keys import ApiKey

log = logging.getLogger(__name__)
V = TypeVar("V")
# Seconds for which a key from the database is cached, so that every process sees a revocation
# within a second.
_FRESH = 0.9
_MOST_CACHED = 10_000
# The least time between two writes of a key's last use.
_USE_INTERVAL = 60 * SECOND
# The prefix of a browser's session token, its usual and its longest validity in seconds, and the
# tolerated difference of clocks in seconds.
_SESSION = "ricordo_session_"
SESSION_SECONDS = 12 * 3600
LONG_SESSION_SECONDS = 30 * 24 * 3600
_SESSION_LEEWAY = 24 * 3600
# After this many unknown keys from one address within a minute, each further key from there that
# is not cached is delayed.
MOST_FAILURES = 20
_FAILURES_COUNT = 60.0
DELAY = 1.0
# The prefix of the key with which a process calls its own server.
PROCESS = "ricordo_process_"
_MINUTE = 60
_LOCAL = Scope()
_LOCAL_USER = Scope(is_local_user=True)
_ADMINISTRATOR = Scope(user_name="administrator", scopes=OPERATOR_SCOPES, caller="administrator")


class _CachedKey(NamedTuple):
    key: ApiKey
    scope: Scope
    until: float


class _Failures(NamedTuple):
    since: float
    times: int


class RequestLimits:
    """Counts each key's requests in a token bucket.

    All requests of a minute may come at once. Then the bucket refills gradually.
    """

    def __init__(self, settings: Settings) -> None:
        self._per_minute = settings.key_requests_per_minute
        # By key name: the remaining requests, and the time when they were counted.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, limits: Limits, now: float | None = None) -> int:
        """Count a request; return 0, or the seconds until the next request is allowed.

        Args:
            limits: The limits of the caller's key. All keys with the same name share one count.
            now: The monotonic time in seconds; None reads the clock.
        """
        per_minute = limits.requests_per_minute or self._per_minute
        if per_minute is None:
            return 0
        now = time.monotonic() if now is None else now
        remaining, since = self._buckets.get(limits.name, (per_minute, now))
        remaining = min(per_minute, round(remaining + (now - since) * per_minute / _MINUTE, 6))
        is_allowed = remaining >= 1
        self._buckets[limits.name] = (remaining - 1 if is_allowed else remaining, now)
        self._buckets.move_to_end(limits.name)
        if len(self._buckets) > _MOST_CACHED:
            self._buckets.popitem(last=False)
        if is_allowed:
            return 0
        return max(1, ceil(round((1 - remaining) * _MINUTE / per_minute, 3)))


class Authentication:
    """Identifies callers by their keys, which are cached for less than a second."""

    def __init__(self, settings: Settings) -> None:
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key else None
        self._host = settings.host
        self._process_key: bytes | None = None
        # Only a server on this machine, without a key in its settings and without a login, may
        # answer callers without a key.
        has_login = settings.oidc_issuer is not None
        self.may_be_local = self._key is None and not has_login and self._host in LOOPBACK
        self._secret = Secret(settings.data_dir)
        self._cached: OrderedDict[str, _CachedKey] = OrderedDict()
        # Keys that the database does not know, with the time until which this is cached.
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._has_keys = False
        self._asked_until = 0.0
        self._writing: set[asyncio.Task[None]] = set()
        # The number of changes of keys. A result that was read before a change is not cached after
        # it.
        self._changes = 0

    @cached_property
    def secret(self) -> bytes:
        """Return the secret key with which API keys are hashed."""
        return self._secret.derive("api keys")

    async def scope_of(
        self, runtime: Runtime, key: str, address: str, *, is_near: bool = False
    ) -> Scope | None:
        """Return the key's scope, with a delay if this address sent many unknown keys.

        Returns None for a key that is unknown, expired or revoked, or of a disabled user.

        Args:
            runtime: The server's parts.
            key: A key, a session token, a program's key or an operator's token, as the client sent
                it.
            address: The IP address of the caller; "" if it is unknown. Addresses of one IPv6
                network count together.
            is_near: The caller is on this machine; the operator's tokens are accepted only there.
        """
        if self._failures:
            await self._slow_down(key, address)
        if _is_equal(key, self._key):
            return _ADMINISTRATOR
        if _is_equal(key, self._process_key):
            return _LOCAL
        if key.startswith(OPERATOR):
            return _ADMINISTRATOR if is_near and is_operator_token(self._secret, key) else None
        digest = self._digest_of(key)
        if digest is None:
            return runtime.sandbox.keys.scope_of(key)
        if self._is_of_settings(digest):
            return _ADMINISTRATOR  # a session of the key in the settings
        return await self._stored_scope(runtime, digest)

    async def _stored_scope(self, runtime: Runtime, digest: str) -> Scope | None:
        """Return the scope of the stored key with this hash; None if there is no valid one."""
        now = time.monotonic()
        cached = self._cached.get(digest)
        if self._unknown.get(digest, 0) > now:
            return None
        if cached is None or cached.until < now:
            changes = self._changes
            row = await runtime.store.read(lambda tx: keys.authenticate(tx, digest))
            if row is None:
                self._cached.pop(digest, None)
                if changes == self._changes:
                    _keep(self._unknown, digest, now + _FRESH)
                return None
            if changes != self._changes:  # not cached, so the next request reads the database again
                return row[1]
            cached = _keep(self._cached, digest, _CachedKey(*row, now + _FRESH))
            self._note_use(runtime, cached.key)
        expires_at = cached.key.expires_at
        is_expired = expires_at is not None and runtime.store.clock.now() >= expires_at
        return None if is_expired else cached.scope

    def make_process_key(self) -> str:
        """Return a key of the local administrator for this process, which runs the server."""
        key = PROCESS + token_urlsafe(32)
        self._process_key = key.encode()
        return key

    def open_session(self, key: str, seconds: int = SESSION_SECONDS) -> str:
        """Return a session token for this key.

        The token is valid for `seconds`, or until the key is revoked. The key cannot be read from
        it.

        Args:
            key: A valid key. It is not checked here.
            seconds: The validity of the token.
        """
        text = f"{keys.hash_of(self.secret, key)}_{int(time.time()) + seconds}"
        return f"{_SESSION}{text}_{self._sign(text)}"

    def _digest_of(self, key: str) -> str | None:
        """Return the hash of the key, or of the key in a session token; None for other texts."""
        if not key.startswith(_SESSION):
            is_stored = key.startswith(keys.PREFIX) and not key.startswith(program_keys.PREFIX)
            if is_stored:
                return keys.hash_of(self.secret, key)
            return None
        text, _, signature = key.removeprefix(_SESSION).rpartition("_")
        if not hmac.compare_digest(
            signature.encode("utf-8", "surrogatepass"), self._sign(text).encode()
        ):
            return None
        digest, _, until = text.partition("_")
        remaining = int(until) - time.time()
        # Refuse a longer remaining time, which comes from a wrong clock.
        is_valid = 0 < remaining <= LONG_SESSION_SECONDS + _SESSION_LEEWAY
        return digest if is_valid else None

    def _sign(self, text: str) -> str:
        return hmac.digest(
            self._secret.derive("sessions"), text.encode("utf-8", "surrogatepass"), "sha256"
        ).hex()

    async def _slow_down(self, key: str, address: str) -> None:
        """Delay the check of a key that is not cached, if this address sent many unknown keys."""
        failures = self._failures.get(network_of(address))
        if (
            failures is None
            or failures.times < MOST_FAILURES
            or time.monotonic() - failures.since > _FAILURES_COUNT
        ):
            return
        # Do not delay a known key because of other callers at its address.
        if not self._is_known(key):
            await asyncio.sleep(DELAY)

    def _is_known(self, key: str) -> bool:
        """Return True for the keys of this process, a cached key, and a session of such a key."""
        if _is_equal(key, self._key) or _is_equal(key, self._process_key):
            return True
        digest = self._digest_of(key)
        if digest is None:
            return False
        return self._is_of_settings(digest) or digest in self._cached

    def _is_of_settings(self, digest: str) -> bool:
        """Return True for the hash of the key in the settings."""
        return self._key is not None and hmac.compare_digest(
            digest, keys.hash_of(self.secret, self._key.decode())
        )

    def note_failure(self, address: str) -> None:
        """Count an unknown key of this address."""
        network = network_of(address)
        now = time.monotonic()
        failures = self._failures.get(network)
        if failures is None or now - failures.since > _FAILURES_COUNT:
            failures = _Failures(now, 0)
        _keep(self._failures, network, failures._replace(times=failures.times + 1))

    async def local(self, runtime: Runtime | None, *, asks: bool = True) -> Scope | None:
        """Return the local administrator if the server is local, without keys and login.

        Args:
            runtime: The server's parts. None before the server has started; then no key is looked
                up.
            asks: Read the database if the cached result is old. False: use only the cached result.
        """
        if not self.may_be_local:
            return None
        if runtime is None:
            return _LOCAL_USER
        now = time.monotonic()
        if asks and not self._has_keys and self._asked_until < now:
            self._has_keys = await runtime.store.read(keys.are_any)
            self._asked_until = now + _FRESH
        return None if self._has_keys else _LOCAL_USER

    async def require_key(self, runtime: Runtime) -> None:
        """Raise Invalid if other machines could use the server without a key."""
        if (
            self._host in LOOPBACK
            or self._key is not None
            or await runtime.store.read(keys.are_any)
        ):
            return
        raise Invalid(
            f"RICORDO_HOST={self._host} can be reached from other machines, so a key is needed. "
            "Create one with `ricordo key create --user NAME --role admin`, or set "
            "RICORDO_API_KEY."
        )

    def forget(self) -> None:
        """Drop all cached keys, after this process has changed keys or users."""
        self._changes += 1
        self._cached.clear()
        self._unknown.clear()
        self._asked_until = 0.0

    def _note_use(self, runtime: Runtime, key: ApiKey) -> None:
        used_at = key.last_used_at
        if used_at is not None and 0 <= runtime.store.clock.now() - used_at < _USE_INTERVAL:
            return
        task = asyncio.ensure_future(_note_use(runtime, key))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _keep(cache: OrderedDict[str, V], name: str, entry: V) -> V:
    """Store the entry as the newest of the cache, and drop the oldest of a full cache."""
    cache[name] = entry
    cache.move_to_end(name)
    if len(cache) > _MOST_CACHED:
        cache.popitem(last=False)
    return entry


def _is_equal(key: str, expected: bytes | None) -> bool:
    """Return whether the key is the expected one, compared in constant time."""
    encoded = key.encode("utf-8", "surrogatepass")
    return expected is not None and hmac.compare_digest(encoded, expected)


def network_of(address: str) -> str:
    """Return the IP address; for IPv6 its network, since a client may have many addresses."""
    if ":" not in address:
        return address
    try:
        return str(ip_network((address, 64), strict=False))
    except ValueError:
        return address


async def _note_use(runtime: Runtime, key: ApiKey) -> None:
    try:
        await runtime.store.write(lambda tx: keys.note_use(tx, key))
    except Exception:
        # The request continues; the next request records the use.
        log.warning("the use of a key could not be noted", extra={"key": key.id}, exc_info=True)
