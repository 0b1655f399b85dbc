"""Artifacts that follow their span: an offset map, a token count, an embedding.

An artifact is keyed by `(span_id, version, content_hash)`. The key is compared at every use, so it does not
matter how a bump was missed; and once more after building, since a bump may land meanwhile.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

from sexton.core.artifact import ArtifactKey, DerivedArtifact, check_artifact
from sexton.holder.flight import SingleFlight
from sexton.holder.pins import Pinning
from sexton.holder.resolve import Resolver
from sexton.holder.runtime import Runtime
from sexton.holder.spans import TRACER, Causes
from sexton.schemas.errors import StaleSpanError, Unsettled

T = TypeVar("T")

Build = Callable[[str], T] | Callable[[str], Awaitable[T]]
"""Makes the artifact from the span's text."""


class Derived(Generic[T]):
    """Something made from a span's text, and made again when the span has changed."""

    def __init__(
        self,
        span_id: str,
        build: Build[T],
        name: str | None,
        *,
        resolver: Resolver,
        runtime: Runtime,
        causes: Causes,
        pinning: Pinning | None = None,
    ) -> None:
        self.span_id = span_id
        self.name = name if name is not None else getattr(build, "__name__", "derived")
        self.builds = 0
        """How often it has been built."""
        self._build = build
        self._pinning = pinning
        self._resolver = resolver
        self._causes = causes
        self._clock = runtime.clock
        self._tries = runtime.settings.settle_tries
        self._log = runtime.log
        self._flight = SingleFlight()
        self._artifact: DerivedArtifact[T] | None = None

    @property
    def key(self) -> ArtifactKey | None:
        """What the value at hand was made from; None before the first use. It may be stale."""
        return self._artifact.key if self._artifact is not None else None

    async def use(self) -> T:
        """The artifact for the span as it is now, built if need be. Concurrent uses share one build.

        Raises:
            Unreachable: the span is unknown or gone.
            Unsettled: it changed during every build, as often as the bound allows.
            Unconfirmed: the holder does not know the head well enough to say.
            Exception: what `build` raised, to each who waited for that build. The next use tries anew.
        """
        for _ in range(self._tries):
            if (artifact := await self._current()) is not None:
                return artifact.value
            await self._flight.run(self._rebuild, fresh=False)
        if (artifact := await self._current()) is not None:
            return artifact.value
        raise Unsettled(
            f"{self.span_id} changed during each of {self._tries} builds",
            span_id=self.span_id,
            name=self.name,
        )

    async def _current(self) -> DerivedArtifact[T] | None:
        """The artifact, if it was made from what is there now."""
        artifact = self._artifact
        if artifact is None:
            return None
        try:
            await self._resolver.on_tree(lambda tree: check_artifact(tree, artifact))
        except StaleSpanError:
            return None
        return artifact

    async def close(self) -> None:
        """Lets go of the version that it was made from. The next use makes it anew."""
        self._artifact = None
        if self._pinning is not None:
            await self._pinning.drop()

    async def _rebuild(self) -> None:
        cause = self._causes.of(self.span_id)
        with TRACER.work("sexton.derive", cause, artifact=self.name, span_id=self.span_id) as span:
            key, data = await self._resolver.current(self.span_id)
            span.set(version=key.version)
            if key != self.key:
                await self._replace(key, data)

    async def _replace(self, key: ArtifactKey, data: bytes) -> None:
        if self._pinning is None:
            await self._make(key, data)
            return
        # The pin is there before what is made from it, and the old one until then: at no time is what is at
        # hand made from bytes that nobody holds.
        held = await self._pinning.take(key.span_id, key.version)
        if held is None:
            return  # it has just changed; the next try knows what it is
        try:
            await self._make(key, data)
        except BaseException:
            await self._pinning.drop(held)
            raise
        await self._pinning.move(held)

    async def _make(self, key: ArtifactKey, data: bytes) -> None:
        began = self._clock.monotonic()
        built: Any = self._build(data.decode())
        value = cast("T", await built if inspect.isawaitable(built) else built)
        self.builds += 1
        self._artifact = DerivedArtifact(key, value)
        self._log.debug(
            "holder.derived",
            name=self.name,
            span_id=key.span_id,
            version=key.version,
            builds=self.builds,
            duration_s=round(self._clock.monotonic() - began, 6),
        )
