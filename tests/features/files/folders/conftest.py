"""A running server with its clients, and helpers for tests of files."""

import time
from typing import Any

import pytest
from sqlalchemy import select

from ricordo.features.files.folders.tables import files
from tests.agents.conftest import open_stage, stage
from tests.api.conftest import Api
from tests.seams.waiting import wait_for
from tests.support.sandboxes import bubblewrap

__all__ = ["open_stage", "stage"]
ENDED = ("completed", "error")


@pytest.fixture(autouse=True, scope="session")
def _sandbox() -> None:
    bubblewrap()


@pytest.fixture
def folder(api: Api) -> str:
    return api.client.folders.create(name=f"folder {time.monotonic_ns()}").id


def put(api: Api, folder: str, name: str, data: bytes | str, **how: Any) -> Any:
    """Upload a file; return it once it was read."""
    content = data.encode() if isinstance(data, str) else data
    return read(
        api, folder, api.client.folders.files.upload(folder, file=(name, content), **how).id
    )


def read(api: Api, folder: str, file_id: str) -> Any:
    """Return a file once it was read.

    The table is queried directly, since HTTP requests would slow the server down.
    """
    status = select(files.c.status).where(files.c.id == file_id)
    wait_for(lambda: api.server.read(lambda tx: tx.first(status)).status in ENDED)
    return api.client.folders.files.retrieve(file_id, folder_id=folder)
