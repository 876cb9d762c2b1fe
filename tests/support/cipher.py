"""A cipher as a server has it, with a secret of its own."""

from cryptography.fernet import Fernet, InvalidToken

from ricordo.errors import Unavailable


class TestCipher:
    """Encrypts for real; another one cannot read it."""

    __test__ = False

    def __init__(self) -> None:
        self._fernet = Fernet(Fernet.generate_key())

    def encrypt(self, text: str) -> str:
        """The text, unreadable."""
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, text: str) -> str:
        """The text again."""
        try:
            return self._fernet.decrypt(text.encode()).decode()
        except InvalidToken:
            raise Unavailable("encrypted with another secret") from None
