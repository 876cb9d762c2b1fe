"""Receipts: signed, kept whole, found again by a name that they do not hold, and refused where they are none."""

from pathlib import Path

import pytest

from ricordo.domain.erasure import Erasure, erasure_of
from ricordo.errors import Invalid
from ricordo.memory import receipts
from ricordo.secret import Secret
from ricordo.storage.store import from_json, to_json

DATABASES = ("sqlite",)


def erasure(secret: Secret, name: str = "ada") -> Erasure:
    """An erasure that is done."""
    return Erasure(
        id="receipt-00000000-0000-4000-8000-000000000001",
        user_id="",
        organization_id="org-1",
        subject=receipts.subject_of("user-1"),
        names=(receipts.name_of(secret, "org-1", name),),
        asked_at=1,
        finished_at=2_000_000,
        removed={"messages": 3},
        chains={"chain-1": {"head": "ab", "versions": 2}},
        agents={"agent-1": 0},
    )


def test_a_receipt_is_kept_and_found_by_a_name_that_it_does_not_hold(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    receipt = receipts.receipt_of(secret, erasure(secret, "ada lovelace"))
    path = receipts.keep(tmp_path, receipt)
    assert path.stat().st_mode & 0o077 == 0
    assert "lovelace" not in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert receipts.kept(tmp_path, receipt["id"]) == receipt
    assert receipts.kept_for(tmp_path, receipts.name_of(secret, "org-1", "ada lovelace")) == receipt
    assert receipts.kept_for(tmp_path, receipts.name_of(secret, "org-2", "ada lovelace")) is None
    # Another installation's key gives other names, so nobody can try names on a receipt alone.
    assert receipts.kept_for(tmp_path, receipts.name_of(Secret(tmp_path / "b"), "org-1", "ada lovelace")) is None
    assert receipts.kept(tmp_path, "../secret.key") is None


def test_the_same_erasure_gives_the_same_receipt_also_from_its_job(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    one = erasure(secret)
    again = erasure_of(from_json(to_json(one.to_json())))
    assert again == one
    assert receipts.receipt_of(Secret(tmp_path), again) == receipts.receipt_of(secret, one)


@pytest.mark.parametrize("field", ["subject", "removed", "memory", "finished_at", "elsewhere"])
def test_whatever_is_changed_breaks_the_signature(tmp_path: Path, field: str) -> None:
    secret = Secret(tmp_path)
    receipt = receipts.receipt_of(secret, erasure(secret))
    assert receipts.verify(receipt, secret)
    assert not receipts.verify({**receipt, field: "another"})
    assert not receipts.verify({**receipt, "more": 1})


def test_a_receipt_of_another_installation_is_told_apart(tmp_path: Path) -> None:
    secret, other = Secret(tmp_path / "a"), Secret(tmp_path / "b")
    receipt = receipts.receipt_of(other, erasure(other))
    assert receipts.verify(receipt)
    assert not receipts.verify(receipt, secret)


@pytest.mark.parametrize(
    "signature", [None, {"algorithm": "none"}, {"algorithm": "ed25519", "public_key": "?", "value": "?"}]
)
def test_what_is_no_receipt_is_refused(signature: object) -> None:
    with pytest.raises(Invalid, match="no receipt"):
        receipts.verify({"id": "receipt-1", "signature": signature})


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_that_is_no_receipt_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(Invalid, match="no receipt"):
        receipts.read(file)
    assert receipts.read(tmp_path / "missing.json") is None
