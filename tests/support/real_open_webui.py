"""The real Open WebUI 0.12.4 that `make openwebui` installs.

It is a process on loopback, without network, and this module calls its API.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from tests.support.server_process import free_port

PATIENCE = 300.0  # seconds: it starts in 15 to 60, and a busy machine takes longer
Json = dict[str, Any]


class RealOpenWebUI:
    """`url` is its address; `admin` is the token of its administrator once it was started."""

    def __init__(self, folder: Path) -> None:
        self._folder, port = folder, free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.admin = ""
        self._port = str(port)
        self._http = httpx2.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RealOpenWebUI":
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._http.close()

    def start(self, **environment: str) -> None:
        """Start it, with the same data if it was started before."""
        program = Path(os.environ["OPEN_WEBUI"]).absolute() / "bin/open-webui"
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "serve", "--host", "127.0.0.1", "--port", self._port],
                cwd=self._folder,
                env=self._environment() | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait_for(self._is_up)
        form = {"name": "Admin", "email": "admin@example.org", "password": "a-long-password"}
        self.admin = (
            self.admin or self.call("POST", "/api/v1/auths/signup", form, token="none")["token"]
        )

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(PATIENCE / 4)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None

    def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, **options: Any
    ) -> Any:
        """Call its API, as the administrator if no other token is given."""
        answer = self.send(method, path, body, token, **options)
        assert answer.status_code < 400, (
            f"{method} {path}: {answer.status_code} {answer.text[:1000]}"
        )
        return answer.json()

    def send(
        self, method: str, path: str, body: Any = None, token: str | None = None, **options: Any
    ) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.admin if token is None else token}"}
        sent = {"json": body} if body is not None else {}
        return self._http.request(method, path, headers=headers, **sent, **options)

    def user(self, name: str) -> Json:
        """Make an ordinary user; return `id`, `token` and so on."""
        form = {
            "name": name,
            "email": f"{name}@example.org",
            "password": "a-long-password",
            "role": "user",
        }
        made: Json = self.call("POST", "/api/v1/auths/add", form)
        return made

    @staticmethod
    def wait_for(find: Callable[[], Any], tell: Callable[[], Any] = str) -> Any:
        """Wait until `find` returns a value, and return it."""
        limit = time.monotonic() + PATIENCE
        while not (found := find()):
            assert time.monotonic() < limit, f"Timed out: {tell()}"
            time.sleep(0.2)
        return found

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text(errors="replace")[
            -3000:
        ]
        try:
            return self._http.get("/health").status_code == 200
        except httpx2.TransportError:
            return False

    def _environment(self) -> dict[str, str]:
        kept = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "LANG", "TMPDIR")
            if name in os.environ
        }
        nowhere = {"_BASE_URL": "http://127.0.0.1:9/v1", "_KEY": "none"}
        return kept | {
            "DATA_DIR": str(self._folder / "data"),
            "WEBUI_SECRET_KEY": "of-a-test-with-more-than-32-bytes",
            "OFFLINE_MODE": "true",
            "ENABLE_OLLAMA_API": "false",
            "OPENAI_API_BASE_URL": nowhere["_BASE_URL"],
            "OPENAI_API_KEY": nowhere["_KEY"],
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_OPENAI_API_BASE_URL": nowhere["_BASE_URL"],
            "RAG_OPENAI_API_KEY": nowhere["_KEY"],
            "RAG_EMBEDDING_MODEL": "none",
            "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
            "ENABLE_API_KEYS": "true",
            "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
            "ENABLE_PIP_INSTALL_FRONTMATTER_REQUIREMENTS": "false",
        }
