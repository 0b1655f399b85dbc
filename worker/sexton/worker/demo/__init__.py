"""The whole of Sexton on one machine, on one transcript, with what it promises looked at from outside.

A composition root like the command line: it starts the servers, a worker and two holders in processes of
their own, plays a story on them, and compares what the holders got with the transcript's own bytes.
"""

from sexton.worker.demo.performance import Result, perform
from sexton.worker.demo.report import as_json, as_table

__all__ = ["Result", "as_json", "as_table", "perform"]
