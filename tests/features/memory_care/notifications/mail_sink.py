"""A mail server for the SMTP of the standard library. It stores its messages."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage


class Sink(socketserver.ThreadingTCPServer):
    """The server, with its messages; `answers` overrides the answer to a command."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.messages: list[EmailMessage] = []
        self.answers: dict[str, str] = {}

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Session(socketserver.StreamRequestHandler):
    server: Sink

    def handle(self) -> None:
        """Answer the commands of one connection."""
        self._say("220 sink")
        while line := self.rfile.readline():
            command = line.decode().strip().upper().split(" ")[0]
            if command == "DATA" and command not in self.server.answers:
                self._say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                mail = message_from_bytes(b"".join(lines), policy=policy.default)
                self.server.messages.append(mail)  # type: ignore[arg-type]
                self._say("250 kept")
            else:
                usual = "221 bye" if command == "QUIT" else "250 ok"
                self._say(self.server.answers.get(command, usual))
            if command == "QUIT":
                return

    def _say(self, answer: str) -> None:
        self.wfile.write(f"{answer}\r\n".encode())


@contextmanager
def mail_sink() -> Iterator[Sink]:
    """A running mail server."""
    with Sink() as sink:
        thread = threading.Thread(target=sink.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield sink
        finally:
            sink.shutdown()
            thread.join()
