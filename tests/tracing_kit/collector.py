"""A collector on 127.0.0.1: takes what the exporter sends, or does something worse."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.hold = threading.Event()
        """Answers wait for it."""
        self.hold.set()
        self.requests = 0
        self.paths: set[str] = set()
        self.names: list[str] = []
        self.bodies: list[bytes] = []
        """As they came."""
        self.resources: list[dict[str, str]] = []
        self.url = ""

    def take(self, path: str, body: bytes) -> int:
        self.requests += 1
        self.paths.add(path)
        self.hold.wait(30)
        if self.status == 200:
            self.bodies.append(body)
            sent = ExportTraceServiceRequest.FromString(body)
            for resource in sent.resource_spans:
                self.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
                self.names += [span.name for scope in resource.scope_spans for span in scope.spans]
        return self.status


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector, for as long as the block lasts."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()
