"""What the clients of a fleet note down."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from framelane.loadtests import fleet_load
from framelane.loadtests.fleet_check import CHECKS
from framelane.loadtests.fleet_load import Answered, Crowd, Outage, until_turn
from framelane.server.sdk.client import Answer, Result, Unanswered
from framelane.server.sdk.session import Counts, Situation
from framelane.server.sdk.states import State


def crowd_with(*answers: Answered, outages: tuple[Outage, ...] = ()) -> Crowd:
    crowd = Crowd("http://localhost", [b""], 2, 1.0)
    crowd.answers, crowd.outages = list(answers), list(outages)
    return crowd


def test_what_the_server_asked_for_is_not_held_against_it() -> None:
    asked = Outage(client=0, began=10.0, ended=13.5, reason="draining", hint_s=3.0)
    assert asked.beyond_hint_s == pytest.approx(0.5)
    assert asked._replace(hint_s=0.0).beyond_hint_s == pytest.approx(3.5)


def test_outcomes_are_counted_by_when_they_were_known_and_for_some_clients_only() -> None:
    crowd = crowd_with(
        Answered(0, 1.0, "result", 10.0), Answered(0, 2.0, "lost", 0.0), Answered(1, 2.5, "result", 30.0)
    )
    assert crowd.outcomes(0, 3) == {"result": 2, "lost": 1}
    assert crowd.outcomes(2, 3) == {"result": 1, "lost": 1}
    assert crowd.outcomes(0, 3, without=frozenset({0})) == {"result": 1}


def test_percentile_is_of_results_only() -> None:
    crowd = crowd_with(*(Answered(0, 1.0, "result", float(n)) for n in range(100)), Answered(1, 1.0, "lost", 0.0))
    assert crowd.percentile(0.99, 0, 2) == 99
    assert math.isnan(crowd.percentile(0.99, 5, 6))


def test_outages_are_found_by_when_they_began() -> None:
    outage = Outage(client=0, began=10.0, ended=13.5, reason="lost", hint_s=0.0)
    assert crowd_with(outages=(outage,)).out(9, 11) == [outage]
    assert not crowd_with(outages=(outage,)).out(11, 20)


def test_every_check_says_what_it_is() -> None:
    assert all(check.__doc__ for check in CHECKS.values())


class AloneClient:
    """The SDK's client, of a server that the test plays."""

    def __init__(
        self,
        _url: str,
        *,
        on_situation: Callable[[Situation], None],
        on_answer: Callable[[Answer], None],
        **_options: Any,
    ) -> None:
        self.situation = Situation(state=State.IDLE)
        self.counts = Counts()
        self.sent = 0
        self._changed, self._answered = on_situation, on_answer

    def becomes(self, state: State, **detail: Any) -> None:
        self.situation = Situation(state=state, **detail)
        self._changed(self.situation)

    def answers(self, answer: Answer) -> None:
        self._answered(answer)

    def connect(self) -> None:
        self.becomes(State.LIVE)

    async def ready(self) -> None: ...

    def send(self, _data: bytes) -> None:
        assert self.situation.state is State.LIVE
        self.sent += 1

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


@contextlib.asynccontextmanager
async def one_that_sends_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Crowd, AloneClient]]:
    monkeypatch.setattr(fleet_load, "Client", AloneClient)
    async with Crowd("http://localhost", [b""], 1, 1 / 3600) as crowd:
        client: Any = crowd._ones[0].client
        await settled()
        assert client.sent == 1
        yield crowd, client


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_client_waits_for_service_and_sends_until_it_has_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_that_sends_once_an_hour(monkeypatch) as (crowd, client):
        client.answers(Unanswered("too late", code="expired", seq=0))
        await settled()
        assert client.sent == 1, "it was served all the time: the next picture is for the next turn"
        client.becomes(State.DRAINING)
        client.becomes(State.BACKOFF, reason="draining", retry_in_ms=3000.0)
        await settled()
        assert client.sent == 1
        client.becomes(State.LIVE)
        await settled()
        assert client.sent == 2
        client.answers(Unanswered("too late", code="expired", seq=0))
        await settled()
        assert (client.sent, crowd.outages) == (3, [])
        client.answers(Result(1, {}, {}, 10.0, None))
        await settled()
        assert (client.sent, [outage.hint_s for outage in crowd.outages]) == (3, [3.0])


@pytest.mark.parametrize("state", [State.BACKOFF, State.CLOSED])
async def test_client_that_is_never_served_again_is_an_outage_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    async with one_that_sends_once_an_hour(monkeypatch) as (crowd, client):
        client.becomes(state, reason="lost")
        await settled()
        async with asyncio.timeout(10):
            await crowd.stop()
        assert [(outage.client, outage.reason) for outage in crowd.outages] == [(0, "lost")]
        assert client.sent == 1


@pytest.mark.parametrize(
    ("since_first", "seconds"), [(0.0, 2.0), (0.1, 1.9), (1.0, 1.0), (1.1, 2.9), (3.9, 2.1), (4.0, 2.0)]
)
def test_turns_stay_where_they_were(since_first: float, seconds: float) -> None:
    assert until_turn(since_first, 2.0) == pytest.approx(seconds)
