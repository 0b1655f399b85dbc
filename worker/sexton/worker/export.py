"""Whether traces leave a program of Sexton's own. How they do is in `otlp`, which needs `sexton[otel]`."""

from collections.abc import Iterator
from contextlib import contextmanager

from sexton.schemas.errors import InvalidInput


@contextmanager
def exporting(service: str, *, on: bool) -> Iterator[None]:
    """Exports the spans of this process for as long as the block lasts. For programs, not for libraries.

    Args:
        service: `service.name`, if no variable of OpenTelemetry's names another.
        on: without it nothing is done, and OpenTelemetry need not be there.

    Raises:
        InvalidInput: OpenTelemetry is not installed, or one of its variables says what cannot be.
    """
    if not on:
        yield
        return
    try:
        from sexton.worker import otlp  # noqa: PLC0415 - may not be installed
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"tracing needs: pip install 'sexton[otel]' ({error.name} is missing)", field="tracing"
        ) from None
    with otlp.exporting(service):
        yield
