"""The consent page in a real browser, from the program through the login and back."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.features.mcp.oauth.test_mcp_oauth import CHALLENGE
from tests.seams.people import OPERATOR
from tests.seams.server import serving
from tests.support.browser import visit


class Program(BaseHTTPRequestHandler):
    """A program that waits for the browser to come back."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"You may close this window.")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def program() -> Iterator[str]:
    listener = HTTPServer(("127.0.0.1", 0), Program)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listener.server_port}/callback"
    listener.shutdown()
    thread.join()
    listener.server_close()


def test_login_and_consent_lead_back_to_the_program(
    browser: Browser, tmp_path: Path, program: str
) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        about = {
            "client_name": "Claude",
            "redirect_uris": [program],
            "token_endpoint_auth_method": "none",
        }
        client = http.post("/oauth/register", json=about).json()["client_id"]
        asked = f"/oauth/authorize?client_id={client}&redirect_uri={program}&response_type=code&state=s1"
        with visit(browser, server.url) as visitor:
            page = visitor.see(f"{asked}&code_challenge={CHALLENGE}&code_challenge_method=S256")
            page.get_by_label("Key").fill(server.key("ada"))
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("heading", name="Let “Claude” use your memory?").wait_for()
            assert visitor.faults() == []
            visitor.require_quiet()
            page.get_by_role("button", name="Allow", exact=True).click()
            page.get_by_text("You may close this window.").wait_for()
            assert page.url.startswith(f"{program}?code=")
            assert page.url.endswith("&state=s1")
