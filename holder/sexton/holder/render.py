"""The active view as one text. Byte-stable while the revision stands: a prompt cache can rely on it."""

from sexton.core.check import check, mint
from sexton.core.tree import ContextTree
from sexton.holder.fetch import Fetcher
from sexton.holder.follow import Follower
from sexton.holder.lanes import in_lanes
from sexton.holder.runtime import Runtime
from sexton.schemas.errors import PointerResurrectionError, Unsettled


class Renderer:
    """Renders one context. Keeps the last text, and through the byte cache the bytes of each version."""

    def __init__(self, follower: Follower, fetcher: Fetcher, runtime: Runtime) -> None:
        self._follower = follower
        self._fetcher = fetcher
        self._tries = runtime.settings.settle_tries
        self._lanes = runtime.settings.fetches_in_flight
        self._keep_bytes = runtime.settings.cache_bytes
        self._last: tuple[str, str] | None = None
        """The chain that was rendered, and the text. A chain names one state of one history."""

    async def render(self) -> str:
        """The view's text at a revision that was current when asked for. Raises as `Context.render`."""
        for _ in range(self._tries):
            tree = await self._follower.confirmed()
            if self._last is not None and self._last[0] == tree.chain:
                return self._last[1]
            try:
                text = await self._rendered(tree)
            except PointerResurrectionError:
                # A span has just changed; the tree may not know yet.
                await self._follower.sync()
                continue
            # Appends since then make nothing wrong that is here; other changes do.
            if self._follower.tree.epoch == tree.epoch:
                self._last = (tree.chain, text) if tree.view_bytes <= self._keep_bytes else None
                return text
        raise Unsettled(f"{self._follower.context_id} changed during each of {self._tries} renderings")

    async def _rendered(self, tree: ContextTree) -> str:
        verdicts = [check(mint(tree, node.span_id), tree) for node in tree.view()]
        found = [self._fetcher.kept(verdict) for verdict in verdicts]
        texts = [piece.data.decode() if piece is not None else None for piece in found]

        async def fetch(i: int) -> None:
            piece = await self._fetcher.part(verdicts[i])
            texts[i] = piece.data.decode()

        missing = [i for i, text in enumerate(texts) if text is None]
        if missing:
            await in_lanes(missing, fetch, self._lanes)
        return "".join(text for text in texts if text is not None)
