"""The server's secret: made once by many threads, private, and never replaced by another."""

import os
import stat
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import pytest

from ricordo.errors import Invalid, Unavailable
from ricordo.secret import FILE, Secret, load_secret


def test_the_secret_is_created_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"

    first = load_secret(folder)

    assert len(first) == 32
    assert load_secret(folder) == first
    assert load_secret(tmp_path) != first
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("has_links", [True, False])
def test_threads_that_load_at_the_same_time_get_the_same_secret(
    tmp_path: Path, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", _refuse)
    start, found = threading.Barrier(8), []

    def ask() -> None:
        start.wait()
        found.append(load_secret(tmp_path))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert set(found) == {load_secret(tmp_path)}
    locks = set() if has_links else {f".{FILE}.lock"}
    assert {path.name for path in tmp_path.iterdir()} == {FILE} | locks


def _refuse(*_: object) -> None:
    raise OSError("This file system has no links.")


def test_a_file_that_others_can_read_becomes_private(tmp_path: Path) -> None:
    load_secret(tmp_path)
    (tmp_path / FILE).chmod(0o644)

    load_secret(tmp_path)

    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 44, urlsafe_b64encode(b"x" * 31)])
def test_an_invalid_secret_file_is_reported_and_left_unchanged(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(Invalid, match="holds no secret key of Ricordo"):
        load_secret(tmp_path)

    assert (tmp_path / FILE).read_bytes() == content


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be read or made"):
        load_secret(tmp_path / "file" / "data")


def test_an_encrypted_text_is_decrypted_only_with_the_same_secret(tmp_path: Path) -> None:
    secret, other = Secret(tmp_path / "one"), Secret(tmp_path / "two")

    text = secret.encrypt("sk-é-42")

    assert "sk-é-42".encode() not in urlsafe_b64decode(text)
    assert secret.encrypt("sk-é-42") != text
    assert Secret(tmp_path / "one").decrypt(text) == "sk-é-42"
    for wrong in (
        text[:-4],
        text[:20] + ("B" if text[20] == "A" else "A") + text[21:],
        "",
        "no token",
    ):
        with pytest.raises(Unavailable):
            secret.decrypt(wrong)
    with pytest.raises(Unavailable, match=r"Put back the secret\.key"):
        other.decrypt(text)


def test_keys_for_different_purposes_differ_and_stay_the_same(tmp_path: Path) -> None:
    secret = Secret(tmp_path)
    assert secret.derive("callbacks") == Secret(tmp_path).derive("callbacks")
    assert (
        len({secret.derive("callbacks"), secret.derive("encryption"), load_secret(tmp_path)}) == 3
    )


def test_no_file_is_created_before_it_is_needed(tmp_path: Path) -> None:
    Secret(tmp_path / "data")
    assert not (tmp_path / "data").exists()
