"""Who the users are and what they do, without a clock."""

import itertools
import random
from collections import Counter

import pytest

from framelane.loadtests.swarm.audience import (
    AUDIENCES,
    STORM_EVERY_S,
    Act,
    Life,
    Persona,
    Presence,
    cast,
    with_turns,
)


def acts(persona, seconds, begin=0.0):
    life = Life(persona, begin, random.Random(1).expovariate)
    return list(itertools.takewhile(lambda act: act[0] < begin + seconds, life.acts()))


@pytest.mark.parametrize("name", AUDIENCES)
@pytest.mark.parametrize("users", [20, 800])
def test_every_stretch_of_users_has_each_persona_in_its_share(name, users):
    personas = AUDIENCES[name]
    counts = Counter(cast(personas, number).name for number in range(users))
    whole = sum(persona.share for persona in personas)
    for persona in personas:
        assert counts[persona.name] == pytest.approx(users * persona.share / whole, abs=2)


def test_steady_users_do_nothing_but_stream():
    assert acts(AUDIENCES["steady"][0], 1e6) == []


def test_thinking_begins_and_ends_in_turn_for_as_long_as_was_said():
    found = acts(Persona(name="p", streams_s=40, thinks_s=5), 100_000)
    assert [act for _, act in found[:4]] == [Act.PAUSE, Act.RESUME, Act.PAUSE, Act.RESUME]
    pauses = [after - before for (before, _), (after, _) in zip(found[::2], found[1::2], strict=False)]
    assert sum(pauses) / len(pauses) == pytest.approx(5, rel=0.1)
    assert len(pauses) == pytest.approx(100_000 / 45, rel=0.1)


def test_those_behind_one_router_vanish_at_the_same_moments_whenever_they_came():
    storms = Persona(name="p", storms=True)
    early, late = acts(storms, 200), acts(storms, 100, begin=77.7)
    assert [at for at, _ in early[:2]] == [STORM_EVERY_S, 2 * STORM_EVERY_S]
    assert {at for at, _ in late} < {at for at, _ in early}
    assert {act for _, act in early} == {Act.VANISH}


def test_acts_of_several_kinds_come_in_order():
    moments = [at for at, _ in acts(Persona(name="p", turns_s=3, vanishes_s=5, visible_s=4, hidden_s=2), 1000)]
    assert moments == sorted(moments)
    assert len(moments) > 500


def test_user_streams_only_while_neither_thinking_nor_hidden():
    presence = Presence()
    seen = []
    for act in (Act.HIDE, Act.PAUSE, Act.SHOW, Act.TURN, Act.RESUME):
        presence.does(act)
        seen.append(presence.streams)
    assert seen == [False, False, False, False, True]


def test_phones_that_turn_need_upright_pictures_too():
    assert with_turns("steady", ("640x480",)) == ("640x480",)
    assert with_turns("audience", ("640x480", "320x240")) == ("640x480", "320x240", "480x640", "240x320")


def test_only_the_hostile_audience_has_people_who_do_harm():
    harm = {name: {p.conduct for p in personas if not p.honest} for name, personas in AUDIENCES.items()}
    assert harm == {"steady": set(), "audience": set(), "hostile": {"deaf", "old", "garbage"}}
