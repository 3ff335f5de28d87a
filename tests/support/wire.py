"""HTTP on loopback: one thread a connection, one request a connection, and nothing is left open at the end."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

Body = dict[str, Any]
Reply = tuple[int, Body | Iterable[bytes]]
Take = Callable[[str, bytes], Reply | None]
"""A path and a raw body in, a status and a body out: JSON, or the events of a stream; None hangs up."""
Tell = Callable[[str], tuple[int, Body]]
"""A path in, a status and a body out, for GET."""


class Wire:
    """Port and threads of one server: `open` it, then `close` it."""

    def __init__(self, take: Take, tell: Tell) -> None:
        self.errors: list[BaseException] = []
        """What `take` raised, other than a broken connection."""
        self._http = _Http(take, tell, self.errors)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        """The free port that was found."""
        return self._http.server_port

    def open(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody and wait until every thread is gone."""
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, take: Take, tell: Tell, errors: list[BaseException]) -> None:
        self.take, self.tell, self._errors = take, tell, errors
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of a host name that `HTTPServer` would do."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End every open connection, so that no thread waits for a client that went away."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self._errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.close_connection = True
        assert isinstance(self.server, _Http)
        status, body = self.server.tell(self.path)
        self._whole(status, json.dumps(body).encode())

    def do_POST(self) -> None:
        self.close_connection = True
        assert isinstance(self.server, _Http)
        reply = self.server.take(self.path, self.rfile.read(int(self.headers.get("content-length", 0))))
        if reply is None:
            return
        status, body = reply
        if isinstance(body, dict):
            self._whole(status, json.dumps(body).encode())
        else:
            self._stream(body)

    def _whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: Iterable[bytes]) -> None:
        """Chunked, so that a client can tell a broken stream from a finished one."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a test's output is its own."""
