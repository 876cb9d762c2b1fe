"""A running server with its clients, and what tests of files share."""

import time
from typing import Any

import pytest

from tests.agents.conftest import open_stage, stage
from tests.api.conftest import Api, api, client, http, running_client, running_http, running_server, server
from tests.support.sandboxes import bubblewrap

__all__ = [
    "Api",
    "api",
    "client",
    "http",
    "open_stage",
    "running_client",
    "running_http",
    "running_server",
    "server",
    "stage",
]
ENDED = ("completed", "error")


@pytest.fixture(autouse=True, scope="session")
def _sandbox() -> None:
    bubblewrap()


@pytest.fixture
def folder(api: Api) -> str:
    return api.client.folders.create(name=f"folder {time.monotonic_ns()}").id


def put(api: Api, folder: str, name: str, data: bytes | str, **how: Any) -> Any:
    """Upload a file, and return it once it is read."""
    content = data.encode() if isinstance(data, str) else data
    return read(api, folder, api.client.folders.files.upload(folder, file=(name, content), **how).id)


def read(api: Api, folder: str, file_id: str) -> Any:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        file = api.client.folders.files.retrieve(file_id, folder_id=folder)
        if file.processing_status in ENDED:
            return file
        time.sleep(0.02)
    raise AssertionError(f"{file.file_name} is not read: {file.processing_status}")
