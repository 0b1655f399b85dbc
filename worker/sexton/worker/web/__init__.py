"""What a program serves over HTTP: health, metrics, and the contract of its messages."""

from sexton.worker.web.routes import make_app
from sexton.worker.web.server import Endpoint, serving

__all__ = ["Endpoint", "make_app", "serving"]
