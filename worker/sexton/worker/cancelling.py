"""Loops that end when they are told to, although a library below may swallow that."""

import asyncio


def cancelled() -> bool:
    """Whether this task was told to end. For the condition of a loop that goes on until then.

    nats-py swallows a cancellation that comes while it flushes; so does `asyncio.wait_for` of Python 3.11 if
    what it waits for comes at the same moment. Such a loop would wait for the next one for ever.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
