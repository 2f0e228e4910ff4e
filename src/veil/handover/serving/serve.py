"""Serve an exported model by HTTP. It needs onnxruntime and the standard library, not Veil.

    python serve.py [PORT]          POST /predict  {"rows": [{"age": 39, "sex": "Female"}]}
                                    GET  /health, /certificate, /card

There is no authentication and no encryption: put it behind a proxy that has both. Rows are not logged.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # veil verify accepts nothing beside the model that it cannot compare
from veil.handover.serving.score import Scorer, WrongRows

HERE = Path(__file__).parent
FILES = {"/certificate": ("certificate.json", "application/json"), "/card": ("MODEL_CARD.md", "text/markdown")}
MOST_BYTES = 64 << 20


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON; what is wrong with a request is one sentence."""

    scorer: Scorer
    timeout = 30  # seconds that a connection may be silent

    def do_GET(self) -> None:
        """The certificate, the model card, or whether the model is ready."""
        if self.path in FILES:
            name, kind = FILES[self.path]
            self._send(200, (HERE / name).read_bytes(), kind)
        elif self.path == "/health":
            self._say(200, {"ready": True})
        else:
            self._say(404, {"error": "use POST /predict, or GET /health, /certificate or /card"})

    def do_POST(self) -> None:
        """Predictions for the rows of the request."""
        if self.path != "/predict":
            self._say(404, {"error": "use POST /predict"})
            return
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= MOST_BYTES:
                raise WrongRows(f"a request may have at most {MOST_BYTES} bytes: send fewer rows at a time")
            rows = json.loads(self.rfile.read(length))["rows"]
            found = self.scorer.table(rows)
        except WrongRows as error:
            self._say(400, {"error": str(error)})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self._say(400, {"error": 'send {"rows": [{column: value, …}, …]} with a value for each column'})
        else:
            self._say(200, {name: list(map(_plain, values)) for name, values in found.items()})

    def _say(self, status: int, answer: dict[str, Any]) -> None:
        self._send(status, json.dumps(answer).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request line may hold what belongs to a person."""


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)


def main(port: int, host: str = "0.0.0.0") -> None:
    """Serve until the process ends."""
    Handler.scorer = Scorer(HERE / "model.onnx")
    with ThreadingHTTPServer((host, port), Handler) as server:
        print(f"serving on port {server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080, *sys.argv[2:3])
