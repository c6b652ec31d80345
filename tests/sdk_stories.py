"""Both clients' sessions behind one face, so that the same story can be told to either and the outcomes compared.

A story is a list of steps ``[now, what, argument]``; telling it gives one record per step.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from framelane.server.protocol import Drain, Dropped, Expires, Pace, Ready, RefusedData, Waiting
from framelane.server.sdk.session import Session

Story = list[list[Any]]

TERMS = {
    "protocol": 1,
    "lane": "a",
    "pipeline": "echo",
    "window": 2,
    "max_frame_bytes": 100,
    "interval_ms": 40,
    "deadline_ms": 500,
}

JAVASCRIPT = """async (stories) => {
  const { Session } = await import("/sdk/session.js");
  const steps = {
    connect: (s, now) => s.connect(now),
    opened: (s, now) => s.opened(now),
    lost: (s, now) => s.lost(now),
    refused: (s, now, why) => s.refused(now, why),
    receive: (s, now, [name, body]) => s.received(now, name, body)?.seq,
    offer: (s, now, size) => s.offer(new Uint8Array(size)),
    take: (s, now) => s.take(now)?.seq,
    token: (s, now) => s.takesToken(now),
    tick: (s, now) => s.tick(now),
    close: (s) => s.close(),
  };
  const step = (s, [now, what, argument]) => {
    try {
      return steps[what](s, now, argument) ?? null;
    } catch {
      return "raises";
    }
  };
  const record = (s, now, outcome) => ({
    outcome,
    state: s.situation.state,
    reason: s.situation.reason ?? null,
    position: s.situation.position ?? null,
    ticket: s.ticket,
    retry_in_ms: s.situation.retry_in_ms ?? null,
    counts: structuredClone(s.counts),
    unanswered: [...s.unanswered.keys()],
    lost: s.takeLost().map(({ seq }) => seq),
    interval: s.pace.interval,
    room: s.hasRoom(now),
    wants: s.wants(now),
    wake_at: Number.isFinite(s.wakeAt) ? s.wakeAt : String(s.wakeAt),
  });
  return stories.map((story) => {
    const session = new Session({ random: () => 0.5 });
    return story.map((told) => record(session, told[0], step(session, told)));
  });
}"""


def tell_javascript(page: Any, stories: list[Story]) -> list[list[dict[str, Any]]]:
    return page.evaluate(JAVASCRIPT, stories)


def tell_python(story: Story) -> list[dict[str, Any]]:
    session = Session(jitter=lambda: 0.5)
    return [_record(session, now, _step(session, now, what, argument)) for now, what, argument in story]


def _step(session: Session, now: float, what: str, argument: Any) -> Any:
    try:
        return _STEPS[what](session, now, argument)
    except ValueError:
        return "raises"


def _take(session: Session, now: float, _: None) -> int | None:
    frame = session.take(now)
    return None if frame is None else frame.seq


def _receive(session: Session, now: float, event: list[Any]) -> int | None:
    name, body = event
    session.heard(now)
    sent = None
    if name == "result":
        sent = session.result(now, body["seq"])
    elif name == "dropped":
        sent = session.dropped(now, msgspec.convert(body, Dropped))
    elif name == "error":
        sent = session.error(now)
    elif name == "ready":
        session.ready(msgspec.convert(body, Ready))
    elif name == "waiting":
        session.waiting(msgspec.convert(body, Waiting))
    elif name == "pace":
        session.paced(msgspec.convert(body, Pace))
    elif name == "expires":
        session.expires(now, msgspec.convert(body, Expires))
    elif name == "drain":
        session.drain(now, msgspec.convert(body, Drain))
    return None if sent is None else sent.seq


_STEPS = {
    "connect": lambda session, now, _: session.connect(now),
    "opened": lambda session, now, _: session.opened(now),
    "lost": lambda session, now, _: session.lost(now),
    "refused": lambda session, now, why: session.refused(now, msgspec.convert(why, RefusedData)),
    "receive": _receive,
    "offer": lambda session, now, size: session.offer(bytes(size)),
    "take": _take,
    "token": lambda session, now, _: session.takes_token(now),
    "tick": lambda session, now, _: session.tick(now),
    "close": lambda session, now, _: session.close(),
}


def _record(session: Session, now: float, outcome: Any) -> dict[str, Any]:
    situation = session.situation
    return {
        "outcome": outcome,
        "state": situation.state.value,
        "reason": situation.reason,
        "position": situation.position,
        "ticket": session.ticket,
        "retry_in_ms": situation.retry_in_ms,
        "counts": msgspec.to_builtins(session.counts),
        "unanswered": list(session.unanswered),
        "lost": [sent.seq for sent in session.take_lost()],
        "interval": session.pace.interval,
        "room": session.has_room(now),
        "wants": session.wants(now),
        "wake_at": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(session.wake_at, session.wake_at),
    }
