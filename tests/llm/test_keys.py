"""Keys on their way: sealed, unsealed, and out of sight."""

from pathlib import Path

import pytest

from ricordo.domain.model import OrganizationProvider
from ricordo.errors import ModelError, Unavailable
from ricordo.llm.organization_providers import seal, unseal
from ricordo.llm.provider_table import Keys
from ricordo.secret import FILE, Secret

KEYS = Keys("sk-secret-1", "AKIA-access-1")


def stored(secret: str | None) -> OrganizationProvider:
    return OrganizationProvider("provider-1", "org-1", "mine", "openai", 0, 0, secret=secret)


@pytest.mark.parametrize("keys", [KEYS, Keys("only-one"), Keys()])
def test_sealed_keys_are_read_again_by_the_same_server(keys: Keys, tmp_path: Path) -> None:
    cipher = Secret(tmp_path)
    secret = seal(keys, cipher)
    assert "secret-1" not in (secret or "")
    assert unseal(stored(secret), cipher) == keys


@pytest.mark.parametrize("garbled", [None, "", "no token"])
def test_another_server_says_which_file_is_missing(garbled: str | None, tmp_path: Path) -> None:
    secret = seal(KEYS, Secret(tmp_path / "one")) if garbled is None else garbled
    with pytest.raises(Unavailable, match=r'provider "mine" cannot be read.*secret\.key'):
        unseal(stored(secret), Secret(tmp_path / "other"))


def test_what_was_sealed_in_another_shape_is_not_quoted(tmp_path: Path) -> None:
    cipher = Secret(tmp_path)
    with pytest.raises(Unavailable) as caught:
        unseal(stored(cipher.encrypt('{"api_token": "sk-secret-1"}')), cipher)
    assert "sk-secret-1" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_keys_are_never_printed() -> None:
    assert repr(KEYS) == "Keys()"


def test_an_error_that_quotes_a_key_loses_it() -> None:
    error = ModelError("llm_authentication", "No such key: sk-secret-1 (AKIA-access-1)", retry_after=3)
    hidden = KEYS.without(error)
    assert (str(hidden), hidden.kind, hidden.retry_after) == ("No such key: (hidden) ((hidden))", error.kind, 3)
    assert Keys("a").without(error) is error


def test_the_servers_own_secret_seals_and_a_lost_file_is_named(tmp_path: Path) -> None:
    secret = seal(KEYS, Secret(tmp_path))
    assert unseal(stored(secret), Secret(tmp_path)) == KEYS
    (tmp_path / FILE).unlink()
    with pytest.raises(Unavailable, match=FILE):
        unseal(stored(secret), Secret(tmp_path))
