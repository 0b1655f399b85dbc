"""The active view as one text."""

import asyncio

import pytest

from sexton.holder import LeafLost, Unavailable, Unsettled
from sexton.holder.cache import ByteCache, BytesKey
from sexton.schemas.rpc import Verb
from tests.holder_kit import CONTEXT, LEAVES, rig


async def test_it_is_the_view_in_order() -> None:
    """C32: summaries in their sources' place, appended leaves behind."""
    async with rig() as r:
        assert "" == await r.run(r.context.render())
        spans = await r.leaves("a long first leaf ", "a long second leaf ", "third ")
        assert "a long first leaf a long second leaf third " == await r.run(r.context.render())
        await r.run(r.context.compact(spans[:2], "both "))
        await r.leaf("fourth")
        assert "both third fourth" == await r.run(r.context.render())


async def test_it_is_byte_stable_while_the_revision_stands() -> None:
    """The very same text, without asking, until a record comes."""
    async with rig() as r:
        await r.leaves()
        text = await r.run(r.context.render())
        asked = r.service.asked[Verb.FETCH]
        assert text is await r.run(r.context.render())
        await r.leaf("more")
        assert text + "more" == await r.run(r.context.render())
        assert asked + 1 == r.service.asked[Verb.FETCH]


async def test_only_what_changed_is_fetched() -> None:
    """Bytes are kept by span, version and hash."""
    async with rig() as r:
        spans = await r.leaves()
        await r.run(r.context.render())
        await r.run(r.context.rewrite(spans[0], "Ship on Monday."))
        asked = r.service.asked[Verb.FETCH]
        assert "".join(["Ship on Monday.", *LEAVES[1:]]) == await r.run(r.context.render())
        assert asked + 1 == r.service.asked[Verb.FETCH]


async def test_a_view_larger_than_the_cache_is_rendered_too() -> None:
    """Then nothing is kept, and all is fetched each time."""
    async with rig(cache_bytes=5) as r:
        await r.leaves()
        assert "".join(LEAVES) == await r.run(r.context.render())
        assert "".join(LEAVES) == await r.run(r.context.render())
        assert 2 * len(LEAVES) == r.service.asked[Verb.FETCH]


async def test_fetches_are_bounded_in_number() -> None:
    """A view of many spans does not flood the service."""
    async with rig(fetches_in_flight=3) as r:
        texts = [f"leaf {i} " for i in range(30)]
        await r.leaves(*texts)
        r.transport.parts.hold()
        rendering = asyncio.create_task(r.context.render())
        await r.clock.rest()
        assert 3 == r.transport.parts.held
        r.transport.parts.release()
        assert "".join(texts) == await r.run(rendering)


async def test_an_append_meanwhile_does_not_spoil_it() -> None:
    """What is there is right; the appended text comes with the next rendering."""
    async with rig() as r:
        await r.leaf("one ")
        _, other = await r.another()
        r.transport.parts.hold()
        rendering = asyncio.create_task(r.context.render())
        await r.clock.rest()
        await r.run(other.append("two"))
        r.transport.parts.release()
        assert "one " == await r.run(rendering)
        assert "one two" == await r.run(r.context.render())


async def test_a_rewrite_meanwhile_is_seen() -> None:
    """No text with a span in it that was gone when it was handed out."""
    async with rig() as r:
        span_id = await r.leaf("one")
        await r.leaf(" two")
        _, other = await r.another()
        r.transport.parts.hold()
        rendering = asyncio.create_task(r.context.render())
        await r.clock.rest()
        await r.run(other.rewrite(span_id, "1"))
        r.transport.parts.release()
        assert "1 two" == await r.run(rendering)


async def test_a_service_that_knows_more_is_listened_to() -> None:
    """The bump of a rewrite is late: the refusal says so."""
    async with rig() as r:
        span_id = await r.leaf("one")
        _, other = await r.another()
        r.transport.bumps.hold()
        await r.run(other.rewrite(span_id, "two"))
        assert "two" == await r.run(r.context.render())


async def test_a_view_that_changes_with_every_try_is_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded tries, then a typed error."""
    async with rig() as r:
        span_id = await r.leaf("version 1")
        rewrites = r.context._commands
        answer = r.service.answer

        def rewriting(context_id: str, verb: Verb, body: bytes) -> list[bytes]:
            parts = answer(context_id, verb, body)
            if verb is Verb.FETCH:
                version = r.service.tree(CONTEXT).nodes[span_id].version
                command = rewrites.rewrite(span_id, f"v {version + 1}", base_version=version, event_id=None)
                r.service.carry_out(CONTEXT, command.kind, command.wire())
            return parts

        monkeypatch.setattr(r.service, "answer", rewriting)
        with pytest.raises(Unsettled, match="renderings"):
            await r.run(r.context.render())


async def test_a_span_that_is_lost_or_out_of_reach_is_an_error() -> None:
    """I9: no view with a hole in it."""
    async with rig() as r:
        spans = await r.leaves()
        r.service.cold_down = True
        with pytest.raises(Unavailable):
            await r.run(r.context.render())
        r.service.cold_down = False
        r.service.lose(CONTEXT, spans[2])
        with pytest.raises(LeafLost):
            await r.run(r.context.render())


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    """Least recently used goes first; what is larger than all of it is not kept."""

    def key(name: str) -> BytesKey:
        return BytesKey("notes", f"l0:{name}", 1, "sha256:x")

    cache = ByteCache(10)
    cache.put(key("a"), b"aaaa")
    cache.put(key("b"), b"bbbb")
    assert b"aaaa" == cache.get(key("a"))
    cache.put(key("c"), b"cccc")
    assert (b"aaaa", None, b"cccc") == (cache.get(key("a")), cache.get(key("b")), cache.get(key("c")))
    cache.put(key("a"), b"AA")
    assert (6, b"AA") == (cache.size_bytes, cache.get(key("a")))
    cache.put(key("big"), b"x" * 11)
    assert cache.get(key("big")) is None
    assert 6 == cache.size_bytes
