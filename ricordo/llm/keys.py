"""Keys of an organization's provider, between the request that brings them and the database, where they lie encrypted."""

from dataclasses import asdict, dataclass, field
from typing import Protocol

import orjson

from ricordo.domain.model import OrganizationProvider
from ricordo.errors import ModelError, RicordoError, Unavailable

HIDDEN = "(hidden)"
# Shorter ones are in ordinary words: hiding them would garble a message and protect nothing.
_SHORTEST = 6


class Cipher(Protocol):
    """What encrypts the keys, with this server's own secret."""

    def encrypt(self, text: str) -> str:
        """Return the text, unreadable for whoever lacks the secret."""

    def decrypt(self, text: str) -> str:
        """Return what was encrypted. Raises an error where it was encrypted with another secret."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What a provider wants to be shown: an API key, or with an access key a secret key (AWS)."""

    api_key: str | None = field(default=None, repr=False)
    access_key: str | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return bool(self.api_key or self.access_key)

    def without(self, error: ModelError) -> ModelError:
        """Return the error; where its message quotes a key, one that does not."""
        message = str(error)
        for key in (self.api_key, self.access_key):
            if key and len(key) >= _SHORTEST:
                message = message.replace(key, HIDDEN)
        return error if message == str(error) else ModelError(error.kind, message, retry_after=error.retry_after)


def seal(keys: Keys, cipher: Cipher) -> str | None:
    """Return the keys as they are stored; None where there are none."""
    given = {name: key for name, key in asdict(keys).items() if key}
    return cipher.encrypt(orjson.dumps(given).decode()) if given else None


def unseal(provider: OrganizationProvider, cipher: Cipher) -> Keys:
    """Return the keys of a provider; raises Unavailable where this server cannot read them."""
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
