"""Receipts: signed, stored whole, found by a name that they do not hold, and refused where they are none."""

from pathlib import Path

import pytest

from ricordo.errors import Invalid
from ricordo.features.erasure import receipts
from ricordo.features.erasure.receipts import Erasure
from ricordo.secret import Secret
from ricordo.storage.engine.store import from_json, to_json

DATABASES = ("sqlite",)


def erasure(secret: Secret, name: str = "ada") -> Erasure:
    """A finished erasure."""
    return Erasure(
        id="receipt-00000000-0000-4000-8000-000000000001",
        user_id="",
        organization_id="org-1",
        subject=receipts.subject_of("user-1"),
        names=[receipts.hash_of_name(secret, "org-1", name)],
        asked_at="1970-01-01T00:00:00.000001+00:00",
        finished_at="1970-01-01T00:00:02+00:00",
        removed={"messages": 3},
        chains={"chain-1": {"head": "ab", "versions": 2}},
        agents={"agent-1": 0},
        shown_in={"conv-1"},
    )


def test_a_receipt_is_stored_and_found_by_a_name_that_it_does_not_hold(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    receipt = receipts.receipt_of(secret, erasure(secret, "ada lovelace"))
    receipts.write(tmp_path, receipt)
    path = receipts.path_of(tmp_path, receipt["id"])
    assert path.stat().st_mode & 0o077 == 0
    assert "lovelace" not in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert receipts.find(tmp_path, receipt["id"]) == receipt
    assert receipts.find(tmp_path, "../secret.key") is None
    assert receipts.find_by_name(tmp_path, receipts.hash_of_name(secret, "org-1", "ada lovelace")) == receipt
    # Another installation's key gives other hashes, so nobody can try names on a receipt alone.
    for other, organization in ((secret, "org-2"), (Secret(tmp_path / "b"), "org-1")):
        assert receipts.find_by_name(tmp_path, receipts.hash_of_name(other, organization, "ada lovelace")) is None


def test_the_same_erasure_gives_the_same_receipt_also_from_its_job(tmp_path: Path) -> None:
    one = erasure(Secret(tmp_path))
    again = Erasure.model_validate(from_json(to_json(one.model_dump(mode="json"))))
    assert again == one
    assert receipts.receipt_of(Secret(tmp_path), again) == receipts.receipt_of(Secret(tmp_path), one)


def test_a_changed_receipt_and_one_of_another_installation_are_told_apart(tmp_path: Path) -> None:
    secret, other = Secret(tmp_path / "a"), Secret(tmp_path / "b")
    receipt = receipts.receipt_of(secret, erasure(secret))
    assert receipts.verify(receipt, secret)
    assert receipts.verify(receipt)
    assert not receipts.verify(receipt, other)
    for name in (*(receipt.keys() - {"signature"}), "more"):
        assert not receipts.verify({**receipt, name: "another"}), name


def test_what_is_no_receipt_is_refused(tmp_path: Path) -> None:
    for signature in (None, {"algorithm": "none"}, {"algorithm": "ed25519", "public_key": "?", "value": "?"}):
        with pytest.raises(Invalid, match="no receipt"):
            receipts.verify({"id": "receipt-1", "signature": signature})
    file = tmp_path / "file.json"
    for text in ("", "[]", "{"):
        file.write_text(text)
        with pytest.raises(Invalid, match="no receipt"):
            receipts.read(file)
    assert receipts.read(tmp_path / "missing.json") is None
