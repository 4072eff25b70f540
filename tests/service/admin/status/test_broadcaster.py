"""Looks are made once for all who listen, and for nobody when there is nobody."""

import asyncio
from contextlib import ExitStack

import pytest

from service.admin.status.broadcaster import BroadcastLimits, StatusBroadcaster, StatusSnapshot
from service.errors.gateway import ListenersFull

pytestmark = pytest.mark.anyio

QUICK = BroadcastLimits(period_seconds=0.02)


class Looker:
    """Counts its looks."""

    def __init__(self) -> None:
        self.num_looks = 0
        self.fails = False

    async def look(self) -> StatusSnapshot:
        self.num_looks += 1
        if self.fails:
            raise RuntimeError("unreadable")
        return StatusSnapshot(now=b"{}", detailed_now=b"{}", point=str(self.num_looks).encode())


async def test_one_look_is_for_all() -> None:
    looker = Looker()
    feed = StatusBroadcaster(looker.look, QUICK)
    with ExitStack() as stack:
        listeners = [stack.enter_context(feed.listening("one")) for _ in range(5)]
        async with asyncio.timeout(5):
            first = [await listener.next() for listener in listeners]
        assert set(first) == {b'event: look\ndata: {"point":1,"now":{}}\n\n'}
        assert looker.num_looks == 1


async def test_nobody_listens_and_nothing_is_looked_at() -> None:
    looker = Looker()
    feed = StatusBroadcaster(looker.look, QUICK)
    with feed.listening("one") as listener:
        await listener.next()
    seen = looker.num_looks
    await asyncio.sleep(5 * QUICK.period_seconds)  # the time itself is what is tested
    assert looker.num_looks == seen
    with feed.listening("one") as listener:
        async with asyncio.timeout(5):
            await listener.next()
    assert looker.num_looks == seen + 1


async def test_a_quick_return_brings_no_look_before_its_time() -> None:
    looker = Looker()
    feed = StatusBroadcaster(looker.look, BroadcastLimits(period_seconds=30))
    with feed.listening("one") as listener:
        async with asyncio.timeout(5):
            await listener.next()
    with feed.listening("one") as listener, pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await listener.next()
    assert looker.num_looks == 1


async def test_the_history_is_bounded() -> None:
    looker = Looker()
    feed = StatusBroadcaster(looker.look, BroadcastLimits(period_seconds=0.001, num_points=3))
    with feed.listening("one") as listener:
        async with asyncio.timeout(5):
            while looker.num_looks < 5:
                await listener.next()
    points = list(range(looker.num_looks - 2, looker.num_looks + 1))
    assert feed.history == f"event: history\ndata: {points}\n\n".replace(", ", ",").encode()


async def test_after_a_gap_the_plots_begin_anew() -> None:
    feed = StatusBroadcaster(Looker().look, BroadcastLimits(period_seconds=0.01, longest_gap_seconds=0.05))
    with feed.listening("one") as listener:
        await listener.next()
    await asyncio.sleep(0.1)  # the gap is what is tested
    with feed.listening("one"):
        assert feed.history == b"event: history\ndata: []\n\n"


async def test_a_stream_has_an_end() -> None:
    feed = StatusBroadcaster(Looker().look, BroadcastLimits(period_seconds=0.01, longest_seconds=0.05))
    with feed.listening("one") as listener:
        async with asyncio.timeout(5):
            while await listener.next() is not None:
                pass


async def test_a_caller_has_as_many_places_as_stay_free_for_others() -> None:
    feed = StatusBroadcaster(Looker().look, BroadcastLimits(most_listeners=8))
    with ExitStack() as stack:
        for caller, num_places in (("one", 4), ("two", 2), ("three", 1), ("four", 1)):
            for _ in range(num_places):
                stack.enter_context(feed.listening(caller))
            with pytest.raises(ListenersFull), feed.listening(caller):
                pass
    with feed.listening("five"):
        pass


async def test_a_look_that_fails_ends_the_streams_and_the_next_listener_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looker = Looker()
    feed = StatusBroadcaster(looker.look, QUICK)
    with feed.listening("one") as listener:
        looker.fails = True
        async with asyncio.timeout(5):
            assert await listener.next() is None
    assert "figures could not be read" in caplog.text
    looker.fails = False
    with feed.listening("one") as listener:
        async with asyncio.timeout(5):
            assert await listener.next() is not None
