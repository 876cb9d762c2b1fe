"""Keys of an organisation's provider, between the request that brings them and the database, where they lie encrypted."""

from dataclasses import dataclass, field
from typing import Protocol

import orjson

from ricordo.domain.provider import OrganizationProvider
from ricordo.errors import ModelError, RicordoError, Unavailable

HIDDEN = "(hidden)"
# Shorter ones stand in ordinary words: hiding them would garble a message and protect nothing.
_SHORTEST = 6


class Cipher(Protocol):
    """What encrypts the keys, with this server's own secret."""

    def encrypt(self, text: str) -> str:
        """The text, unreadable for whoever lacks the secret."""
        ...

    def decrypt(self, text: str) -> str:
        """The mirror of `encrypt`. Raises an error where it was encrypted with another secret."""
        ...


@dataclass(frozen=True, slots=True)
class Keys:
    """What a provider wants to be shown: an API key, or with an access key a secret key (AWS)."""

    api_key: str | None = field(default=None, repr=False)
    access_key: str | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return bool(self.api_key or self.access_key)

    def hide_in(self, text: str) -> str:
        """The text without the keys, which a provider may have quoted."""
        for key in (self.api_key, self.access_key):
            if key and len(key) >= _SHORTEST:
                text = text.replace(key, HIDDEN)
        return text

    def without(self, error: ModelError) -> ModelError:
        """The error; where its message quotes a key, one that does not."""
        message = str(error)
        hidden = self.hide_in(message)
        return error if hidden == message else ModelError(error.kind, hidden, retry_after=error.retry_after)


def seal(keys: Keys, cipher: Cipher) -> str | None:
    """The keys as they are stored; None where there are none."""
    if not keys:
        return None
    given = {"api_key": keys.api_key, "access_key": keys.access_key}
    return cipher.encrypt(orjson.dumps({name: key for name, key in given.items() if key}).decode())


def unseal(provider: OrganizationProvider, cipher: Cipher) -> Keys:
    """The keys of a provider; raises Unavailable where this server cannot read them."""
    if provider.secret is None:
        return Keys()
    try:
        return Keys(**orjson.loads(cipher.decrypt(provider.secret)))
    except (RicordoError, ValueError, TypeError):
        # `from None`: the cause may hold what was decrypted.
        raise Unavailable(
            f'The key of provider "{provider.name}" cannot be read: it was encrypted with another secret.key. Put the file '
            "secret.key of the server that saved it into this server's data folder, or save the key again."
        ) from None
