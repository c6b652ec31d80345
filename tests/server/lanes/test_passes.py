"""Tokens are spent, renewed and expire: the lanes of signed tokens, without sockets."""

import math
from typing import Any

import pytest
from lane_world import Client, World

from framelane.preprocess.messages import Fate
from framelane.server.errors import Refused
from framelane.server.lanes import passes as passes_module
from framelane.server.lanes.abroad import Abroad, digest
from framelane.server.lanes.exchange import Exchange
from framelane.server.lanes.lane import Lane
from framelane.server.lanes.passes import Passes
from framelane.server.lanes.tokens import Tokens, mint, secret_key

KEY = secret_key("x" * 32)
START = 1_800_000_000.0


class Guarded(World):
    """A world whose clients need tokens; the wall clock goes with the other one."""

    def __init__(self, word: str | None = None, **limits: Any) -> None:
        super().__init__(**limits)
        passes = Passes(word, Tokens([KEY], "here"), lambda: START + self.now)
        self.exchange = Exchange(self.pool, self.exchange.limits, lambda: self.now, passes=passes)

    def token(self, seconds: float = 60, campaign: str = "") -> str:
        return mint(KEY, "here", START + self.now, seconds=seconds, campaign=campaign)

    def leave(self, lane: Lane, *, lost: bool = True) -> None:
        self.exchange.disconnect(lane, lost=lost)


def refused(world: World, **hello: Any) -> str:
    with pytest.raises(Refused) as error:
        world.client(**hello)
    assert error.value.code == "unauthorized"
    return error.value.message


def test_token_opens_a_lane_and_says_how_long_it_lasts() -> None:
    world = Guarded()
    lane, client = world.client(token=world.token(60, "spring"))
    assert [event[0] for event in client.got] == ["ready", "expires"]
    assert client.told("expires") == [{"expires_in_ms": 60_000}]
    assert (lane.campaign, lane.token != "") == ("spring", True)


@pytest.mark.parametrize("given", [None, "", "word", "a.b.c"])
def test_nothing_else_does(given: str | None) -> None:
    assert refused(Guarded(), token=given)


def test_word_is_enough_where_there_is_one_and_does_not_expire() -> None:
    world = Guarded(word="sesame")
    lane, client = world.client(token="sesame")
    world.client(token=world.token())
    assert refused(world, token="sesam")
    assert client.told("expires") == []
    world.tick(400)
    assert not lane.cut


def test_token_opens_one_lane() -> None:
    world = Guarded()
    token = world.token()
    lane, client = world.client(token=token, resume="")
    assert "used before" in refused(world, token=token)
    assert "used before" in refused(world, token=token, resume="a-guess")
    assert "used before" in refused(world, token=token, resume="")
    assert not client.aborted
    world.leave(lane)
    assert "used before" in refused(world, token=token)


def test_client_comes_back_with_the_same_token_and_its_ticket_however_often() -> None:
    world = Guarded(max_clients=1)
    token = world.token()
    lane, client = world.client(token=token, resume="")
    for _ in range(3):
        (ticket,) = {ready["ticket"] for ready in client.told("ready")}
        world.leave(lane)
        assert "used before" in refused(world, token=token, resume="another")
        lane, client = world.client(token=token, resume=ticket)
    world.tick(20)  # beyond the grace: it gets a new ticket, and comes back with the old one nevertheless
    world.leave(lane)
    world.tick(20)
    lane, client = world.client(token=token, resume=ticket)
    assert client.told("ready")[0]["ticket"] != ticket
    assert "used before" in refused(world, token=token, resume=ticket)


def test_connection_that_is_still_there_gives_way_to_its_client_not_to_a_thief() -> None:
    world = Guarded()
    token = world.token()
    _, client = world.client(token=token, resume="")
    world.client(token=token, resume=client.told("ready")[0]["ticket"])
    assert client.aborted


def test_refusal_spends_no_token() -> None:
    world = Guarded(max_clients=1, waiting_room=0)
    lane, _ = world.client(token=world.token())
    token = world.token()
    with pytest.raises(Refused, match="places"):
        world.client(token=token)
    world.leave(lane, lost=False)
    world.client(token=token)


def test_one_answer_over_http_spends_a_token() -> None:
    world = Guarded()
    token = world.token()

    def ask() -> Lane:
        from framelane.preprocess.packets import WEBSOCKET
        from framelane.server.protocol import Hello

        return world.exchange.admit(Hello(token=token), WEBSOCKET, Client(), may_wait=False)

    world.leave(ask())
    with pytest.raises(Refused, match="used before"):
        ask()
    assert "used before" in refused(world, token=token, resume="")


def test_connection_ends_with_its_token_by_name() -> None:
    world = Guarded()
    lane, client = world.client(token=world.token(60))
    world.tick(59)
    assert client.closed is None
    world.tick(3)
    told = {"code": "unauthorized", "message": "the token has expired", "retry_after_ms": 0}
    assert client.told("refused") == [told]
    assert client.closed == (4401, "unauthorized")
    assert world.exchange.accounts.cut == {"expired": 1}
    world.leave(lane)
    assert not world.exchange.delivery.lanes


def test_client_streams_on_for_an_hour_by_renewing() -> None:
    world = Guarded()
    lane, client = world.client(token=world.token(300), resume="")
    for _ in range(24):
        world.tick(150)
        token = world.token(300)
        assert world.exchange.renew(lane, token)
        assert "used before" in refused(world, token=token, resume=""), "a renewal spends it"
    assert client.closed is None
    assert [told["expires_in_ms"] for told in client.told("expires")] == [300_000] * 25
    world.leave(lane)
    world.client(token=token, resume=client.told("ready")[0]["ticket"])


@pytest.mark.parametrize("bad", ["damaged", "expired", "campaign", "used", "word"])
def test_bad_renewal_is_an_error_and_the_old_token_still_counts(bad: str) -> None:
    world = Guarded(word="sesame")
    used = world.token()
    world.client(token=used)
    lane, client = world.client(token=world.token(60, "spring"))
    tokens = {
        "damaged": "a.b.c",
        "expired": mint(KEY, "here", START - 100, seconds=50, campaign="spring"),
        "campaign": world.token(60, "summer"),
        "used": used,
        "word": "sesame",
    }
    assert world.exchange.renew(lane, tokens[bad])
    (error,) = client.told("error")
    assert error["code"] == "bad_token"
    assert client.closed is None
    world.tick(62)
    assert client.closed == (4401, "unauthorized")
    accounts = world.exchange.accounts
    assert (accounts.received, accounts.refused["bad_token"]) == (1, 1), "the books add up"


def test_renewal_that_lasts_less_than_the_token_shortens_nothing() -> None:
    world = Guarded()
    lane, client = world.client(token=world.token(300))
    world.exchange.renew(lane, world.token(10))
    assert client.told("expires")[-1] == {"expires_in_ms": 300_000}
    world.tick(60)
    assert client.closed is None


def test_renewals_that_are_none_end_the_connection_as_bad_messages_do() -> None:
    world = Guarded(fault_burst=5)
    lane, _ = world.client(token=world.token())
    assert [world.exchange.renew(lane, "x") for _ in range(6)] == [True] * 5 + [False]


def test_client_in_the_waiting_room_renews_and_is_ended_too() -> None:
    world = Guarded(max_clients=1)
    world.client(token=world.token(300))
    (patient, told), (_, other) = world.client(token=world.token(60)), world.client(token=world.token(60))
    assert [event[0] for event in told.got] == ["waiting", "expires"]
    world.tick(50)
    world.exchange.renew(patient, world.token(60))
    world.tick(20)
    assert (told.closed, other.closed) == (None, (4401, "unauthorized"))


def test_ids_are_forgotten_with_their_tokens_and_never_before() -> None:
    world = Guarded()
    passes = world.exchange.passes
    for _ in range(50):
        world.leave(world.client(token=world.token(60))[0])
    assert len(passes._spent) == 50
    world.tick(61)
    world.client(token=world.token(60))
    assert (len(passes._spent), len(passes._ends)) == (1, 1)


def test_full_memory_refuses_new_tokens_and_forgets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "MOST_SPENT", 3)
    world = Guarded()
    tokens = [world.token() for _ in range(3)]
    for token in tokens:
        world.client(token=token)
    with pytest.raises(Refused) as error:
        world.client(token=world.token())
    assert (error.value.code, error.value.retry_after_ms) == ("full", 5000)
    for token in tokens:
        assert "used before" in refused(world, token=token)


class Neighbour(Abroad):
    """Tells another replica what is spent here, at once."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def spent(self, token: bytes, ticket: bytes, until: float) -> None:
        self._passes.elsewhere(token, ticket, until)


def neighbours(**limits: Any) -> tuple[Guarded, Guarded]:
    a, b = Guarded(**limits), Guarded(**limits)
    a.exchange.passes.abroad = Neighbour(b.exchange.passes)
    b.exchange.passes.abroad = Neighbour(a.exchange.passes)
    return a, b


def test_token_opens_one_lane_of_all_replicas_and_follows_its_client() -> None:
    a, b = neighbours()
    token = a.token()
    lane, client = a.client(token=token, resume="")
    assert "used before" in refused(b, token=token, resume="")
    a.leave(lane)
    old = client.told("ready")[0]["ticket"]
    _, client = b.client(token=token, resume=old)
    new = client.told("ready")[0]["ticket"]
    assert new != old
    assert "used before" in refused(a, token=token, resume=old)
    a.client(token=token, resume=new)


def test_what_opened_nothing_that_one_comes_back_to_is_nobodys_at_other_replicas_too() -> None:
    a, b = neighbours()
    kicked, told = a.token(), a.token()
    lane, client = a.client(token=kicked, resume="")
    ticket = client.told("ready")[0]["ticket"]
    b.exchange.passes.revoke(lane.token)
    a.exchange.passes.bind(lane, a.exchange.passes.check(kicked, ticket), a.now)  # crossed the kick
    assert "used before" in refused(b, token=kicked, resume=ticket)
    a.exchange.passes.spend(a.exchange.passes.check(told), "")
    assert "used before" in refused(b, token=told, resume="")


@pytest.mark.parametrize("why", ["kicked", "cut"])
def test_client_that_was_turned_out_is_not_taken_in_by_another_replica(why: str) -> None:
    a, b = neighbours(fatal_frames=1)
    token = a.token()
    lane, client = a.client(token=token, resume="")
    if why == "kicked":
        a.exchange.kick(lane)
    else:
        a.exchange.frame(lane, 0, b"x")
        a.pool.finish(fate=Fate.FAILED, fatal=True)
    assert client.closed is not None
    for world in (a, b):
        assert "used before" in refused(world, token=token, resume=client.told("ready")[0]["ticket"])


def test_tokens_of_others_expire_and_take_half_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "MOST_SPENT", 4)
    a, b = neighbours()
    tokens = [a.token() for _ in range(3)]
    for token in tokens:
        a.client(token=token)
    assert "used before" in refused(b, token=tokens[1])
    b.client(token=tokens[2])  # b could not take note of it
    b.client(token=b.token())
    for world in (a, b):
        world.tick(61)
        world.client(token=world.token())
        assert len(world.exchange.passes._spent) == len(world.exchange.passes._ends) <= 2


def test_replica_to_which_nobody_comes_forgets_what_has_expired_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "MOST_SPENT", 4)
    a, spare = neighbours()
    for _ in range(3):
        a.leave(a.client(token=a.token())[0])
    for world in (a, spare):
        world.tick(61)
    token = a.token()
    a.client(token=token)
    assert "used before" in refused(spare, token=token)


@pytest.mark.parametrize("until", [START + 1e9, math.nan])
def test_another_replica_cannot_make_a_token_last(until: float) -> None:
    world = Guarded()
    world.exchange.passes.elsewhere(digest("7f"), b"", until)
    world.tick(301)
    world.client(token=world.token())
    assert digest("7f") not in world.exchange.passes._spent


def test_without_tokens_everybody_may_come_in() -> None:
    world = World()
    _, client = world.client(token="whatever")
    assert [event[0] for event in client.got] == ["ready"]
