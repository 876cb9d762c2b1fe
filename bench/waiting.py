"""Waiting for a server's background work, until stored texts are indexed and have vectors."""

import time

import httpx2

_KINDS = ("search.flush", "search.embed")
_OPEN = ("waiting", "running")


def wait_for_index(client: httpx2.Client, seconds: float = 300) -> float:
    """Return the seconds until no job of the index is left.

    Raises TimeoutError.
    """
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        answer = client.get("/v1/jobs/queue")
        answer.raise_for_status()
        queue = answer.json()
        failed = [error for error in queue["errors"] if error["kind"] in _KINDS]
        if failed:
            raise RuntimeError(
                f"A job of the index failed: {failed[0]['type']}: {failed[0]['message']}"
            )
        depth = queue["depth"]
        if not any(depth.get(kind, {}).get(status) for kind in _KINDS for status in _OPEN):
            return time.monotonic() - began
        time.sleep(0.25)
    raise TimeoutError(
        f"The index was not complete after {seconds:.0f} seconds; GET /v1/jobs/queue says what is "
        "left."
    )
