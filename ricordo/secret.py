"""The secret key of an installation, in a file of the data folder.

A separate key for each purpose is derived from it. These keys encrypt data that must be read again
(keys of providers), and sign data for others to check (callbacks). The secret key is not in the
database, so the encrypted data cannot be read from a copy of the database alone. Servers that share
a database need the same file.
"""

import hmac
import os
import secrets
import stat
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ricordo.errors import Invalid, Unavailable
from ricordo.new_files import create_once

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

FILE = "secret.key"
# The beginning of the operator's tokens.
OPERATOR = "ricordo_operator_"
_TOKEN_SECONDS = 60
_SIZE = 32
_OPEN_TO_OTHERS = 0o077


def load_secret(data_dir: Path) -> bytes:
    """Return the 32 bytes of `<data_dir>/secret.key`, which the first call creates.

    Args:
        data_dir: The data folder. Others lose their access to the file.

    Raises:
        Invalid: The file holds no key.
        Unavailable: The file cannot be read or created.
    """
    path = data_dir / FILE
    try:
        if not path.exists():
            _make(path)
        if os.name == "posix" and path.stat().st_mode & _OPEN_TO_OTHERS:
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        return _read(path)
    except OSError as error:
        raise Unavailable(
            f"The secret key {path} cannot be read or made: {error.strerror}. Check the folder."
        ) from error


def require_unneeded(data_dir: Path, needed_for: str) -> None:
    """Raise Unavailable if the secret is missing and the database needs it.

    Args:
        data_dir: The data folder, whose secret is missing.
        needed_for: The data that needs the secret, for the error; "" if no data does.

    Raises:
        Unavailable: Some data needs the secret.
    """
    if needed_for:
        path = data_dir / FILE
        raise Unavailable(
            f"The secret key {path} is missing, and without it the database's {needed_for} cannot "
            f"be used. Put back the {FILE} that belongs to this database. If it is lost, create "
            f"one with `openssl rand -base64 32 > {path}`, then enter or create those again."
        )


def operator_token(data_dir: Path) -> str | None:
    """Return a token that proves access to the data folder.

    A server on this machine accepts it for a minute.

    Args:
        data_dir: The data folder of the server.

    Returns:
        The token; None if the folder has no secret.

    Raises:
        Unavailable: The secret cannot be read.
        Invalid: The file holds no key.
    """
    if not (data_dir / FILE).exists():
        return None
    until = str(int(time.time()) + _TOKEN_SECONDS)
    return f"{OPERATOR}{until}_{_sign_token(Secret(data_dir), until)}"


def is_operator_token(secret: "Secret", token: str) -> bool:
    """Return True if the token is valid and was made with this secret.

    Args:
        secret: The secret of this server.
        token: Any text that a caller sent as its key.
    """
    until, _, signed = token.removeprefix(OPERATOR).partition("_")
    if not (
        token.startswith(OPERATOR)
        and token.isascii()
        and until.isdigit()
        and len(until) < len("10000000000000")
    ):
        return False
    seconds_left = int(until) - time.time()
    if not 0 < seconds_left <= _TOKEN_SECONDS:
        return False
    return hmac.compare_digest(signed, _sign_token(secret, until))


def _sign_token(secret: "Secret", until: str) -> str:
    return hmac.digest(secret.derive("operator"), until.encode(), "sha256").hex()


class Secret:
    """The uses of a data folder's secret.

    The file is read or created when it is first used.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for one purpose.

        It reveals nothing about the secret, or about keys for other purposes.

        Args:
            purpose: The name of the purpose, always the same for the same key.

        Raises:
            Invalid: The file of the secret holds no key.
            Unavailable: The secret cannot be read or created.
        """
        return hmac.digest(self._bytes, f"ricordo {purpose}".encode(), "sha256")

    def encrypt(self, text: str) -> str:
        """Encrypt a text, so that only servers with this secret can read it.

        Args:
            text: A short text, such as a provider's keys as JSON.
        """
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, text: str) -> str:
        """Decrypt a text.

        Args:
            text: A text that `encrypt` returned.

        Raises:
            Invalid: The file of the secret holds no key.
            Unavailable: The text was encrypted with another secret, or the secret cannot be read.
        """
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(text.encode()).decode()
        except InvalidToken:
            raise Unavailable(
                f"This was encrypted with another secret key. Put back the {FILE} that belongs to "
                "this database, or enter it again."
            ) from None

    @cached_property
    def _bytes(self) -> bytes:
        return load_secret(self._data_dir)

    @cached_property
    def _fernet(self) -> "Fernet":
        from cryptography.fernet import Fernet  # slow to import, and few servers encrypt anything

        return Fernet(urlsafe_b64encode(self.derive("encryption")))


def _make(path: Path) -> None:
    """Create the key file, complete at once, unless another process was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{FILE}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(urlsafe_b64encode(secrets.token_bytes(_SIZE)) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        create_once(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    text = path.read_bytes().strip()
    try:
        secret = urlsafe_b64decode(text)
    except ValueError:
        secret = b""
    if len(secret) != _SIZE:
        raise Invalid(
            f"{path} holds no secret key of Ricordo. Put back the right file. Without it, stored "
            "API keys, providers' keys and remotes' passwords cannot be used. If it is lost, "
            "delete the file and start again to see which ones are affected."
        )
    return secret
