"""What a client decides. Every story is told to both clients, and they must agree step by step."""

import random

import pytest
from sdk_stories import TERMS, Story, tell_javascript, tell_python

from framelane.server.protocol import Drop

LIVE: Story = [[0, "connect", None], [5, "opened", None], [10, "receive", ["ready", TERMS]]]
SLOW = {**TERMS, "interval_ms": 100}
UNBOUND = {**TERMS, "interval_ms": 0}


def live(*steps: list, terms: dict = TERMS) -> Story:
    return [*LIVE[:2], [10, "receive", ["ready", terms]], *map(list, steps)]


def send(now: float) -> list[list]:
    return [[now, "offer", 10], [now, "take", None]]


def result(now: float, seq: int) -> list:
    return [now, "receive", ["result", {"seq": seq}]]


def dropped(now: float, seq: int, reason: str) -> list:
    return [now, "receive", ["dropped", {"seq": seq, "reason": reason}]]


STORIES: dict[str, Story] = {
    "never_more_than_the_window_unanswered": live(
        *send(20), *send(60), *send(100), result(110, 0), [110, "take", None]
    ),
    "newer_picture_replaces_the_one_that_waits": live(*send(20), *send(60), *send(100), *send(140), result(150, 0)),
    "picture_offered_while_offline_waits_alone": [[0, "offer", 1], [1, "offer", 2], *live(), [20, "take", None]],
    "pictures_keep_to_the_interval": live(*send(20), result(25, 0), *send(30), [39, "take", None], [41, "take", None]),
    "server_slows_a_client_down": live(
        [15, "receive", ["pace", {"interval_ms": 200}]], *send(20), *send(160), *send(175)
    ),
    "drops_to_load_slow_a_client_down_once": live(
        *send(20), *send(60), dropped(70, 0, "expired"), dropped(71, 1, "superseded")
    ),
    "results_make_a_slowed_client_faster": live(
        *send(20), dropped(30, 0, "rate_limited"), *send(100), result(110, 1), *send(200), result(210, 2)
    ),
    "bad_picture_says_nothing_about_the_rate": live(*send(20), dropped(30, 0, "invalid")),
    "too_large_a_picture_raises": live([20, "offer", 101]),
    "error_answers_what_was_sent_last": live(
        *send(20), *send(60), [70, "receive", ["error", {"code": "bad_frame", "message": "?"}]], result(80, 0)
    ),
    "unknown_answer_is_ignored": live(*send(20), result(30, 7), dropped(31, 7, "failed")),
    "waiting_tells_the_position_until_there_is_a_place": [
        *LIVE[:2],
        [10, "receive", ["waiting", {"position": 3, "retry_after_ms": 900}]],
        [500, "receive", ["waiting", {"position": 1, "retry_after_ms": 300, "ticket": "t"}]],
        [900, "receive", ["ready", TERMS]],
    ],
    "token_is_renewed_at_half_of_its_time_and_asked_for_again_until_one_was_taken": live(
        [20, "receive", ["expires", {"expires_in_ms": 60_000}]],
        [30_019, "token", None],
        [30_020, "token", None],
        [30_021, "token", None],
        [35_020, "token", None],
        [35_100, "receive", ["expires", {"expires_in_ms": 300_000}]],
        [40_020, "token", None],
    ),
    "token_of_a_connection_that_was_lost_is_not_renewed": live(
        [20, "receive", ["expires", {"expires_in_ms": 60_000}]], [30, "lost", None], [40_000, "token", None]
    ),
    "client_that_waits_renews_too": [
        *LIVE[:2],
        [10, "receive", ["waiting", {"position": 3, "retry_after_ms": 900}]],
        [10, "receive", ["expires", {"expires_in_ms": 1000}]],
        [510, "token", None],
        [520, "receive", ["ready", TERMS]],
        [6000, "token", None],
    ],
    "live_client_that_is_refused_for_now_comes_back": live(
        *send(20), [30, "refused", {"code": "unauthorized", "message": "it has expired", "retry_after_ms": 0}]
    ),
    "live_client_that_is_refused_for_good_does_not": live(
        *send(20), [30, "refused", {"code": "idle", "message": "nothing came"}]
    ),
    "transport_that_does_not_open_is_given_up": [[0, "connect", None], [9999, "tick", None], [10_000, "tick", None]],
    "server_that_does_not_greet_is_given_up": [*LIVE[:2], [10_004, "tick", None], [10_005, "tick", None]],
    "waits_double_with_full_jitter": [
        [0, "connect", None],
        *(step for n in range(8) for step in ([20_000 * n, "lost", None], [20_000 * n + 10_000, "tick", None])),
    ],
    "ready_forgets_earlier_waits": [
        [0, "connect", None],
        *([0, "lost", None], [250, "tick", None], [250, "lost", None], [750, "tick", None]),
        *([760, "opened", None], [770, "receive", ["ready", TERMS]], [800, "lost", None]),
    ],
    "refusal_with_a_time_is_tried_again_no_sooner": [
        *LIVE[:2],
        [10, "refused", {"code": "full", "retry_after_ms": 2000}],
        [2259, "tick", None],
        [2260, "tick", None],
    ],
    "refusal_without_a_time_is_final": [
        *LIVE[:2],
        [10, "refused", {"code": "unauthorized", "message": "no"}],
        [99_999, "tick", None],
        [100_000, "connect", None],
    ],
    "drain_with_nothing_unanswered_leaves_at_once": live(
        [20, "receive", ["drain", {"reconnect_after_ms": 700}]], [719, "tick", None], [720, "tick", None]
    ),
    "drain_waits_for_answers_and_sends_nothing": live(
        *send(20),
        [25, "receive", ["drain", {"reconnect_after_ms": 700}]],
        *send(80),
        result(90, 0),
        [790, "tick", None],
    ),
    "drain_keeps_its_time_when_the_transport_goes": live(
        *send(20), [25, "receive", ["drain", {"reconnect_after_ms": 700}]], [30, "lost", None]
    ),
    "lost_connection_loses_what_was_unanswered": live(*send(20), *send(60), [70, "lost", None]),
    "new_connection_starts_its_numbers_again": live(
        *send(20),
        *([30, "lost", None], [280, "tick", None], [290, "opened", None], [300, "receive", ["ready", TERMS]]),
        *send(310),
    ),
    "answer_that_never_comes_is_given_up": live(
        *send(20), [100, "receive", ["pace", {"interval_ms": 40}]], [5020, "tick", None]
    ),
    "silent_connection_is_given_up": live(*send(20), [5019, "tick", None], [5020, "tick", None]),
    "closing_ends_everything": live(*send(20), [30, "offer", 1], [40, "close", None], [50, "close", None]),
    "connecting_twice_raises": [[0, "connect", None], [1, "connect", None]],
    "fast_server_has_no_interval": live(
        *send(20), *send(20), *send(20), result(21, 0), [21, "take", None], terms=UNBOUND
    ),
}


@pytest.fixture(scope="module")
def in_javascript(javascript):
    names = list(STORIES)
    return dict(zip(names, tell_javascript(javascript, [STORIES[name] for name in names]), strict=True))


@pytest.mark.parametrize("name", STORIES)
def test_both_clients_decide_the_same(name, in_javascript):
    assert tell_python(STORIES[name]) == in_javascript[name]


def test_both_clients_decide_the_same_in_random_stories(javascript):
    stories = [random_story(random.Random(seed)) for seed in range(60)]
    told = tell_javascript(javascript, stories)
    for seed, (story, there) in enumerate(zip(stories, told, strict=True)):
        assert tell_python(story) == there, f"seed {seed}"


def random_story(chance: random.Random) -> Story:
    """Events in any order, mostly those that make sense: also what a hostile server or a broken network may do."""
    story, now = [list(step) for step in LIVE], 10
    for _ in range(60):
        now += chance.choice((0, 1, 7, 20, 60, 400, 6000))
        what = chance.choice(("offer", "take", "take", "receive", "receive", "receive", "tick", "tick", *RARE))
        argument = {"offer": lambda: chance.choice((1, 50, 101)), "receive": lambda: event(chance)}.get(what)
        story.append([now, what, REFUSAL if what == "refused" else argument() if argument else None])
    return story


RARE = ("lost", "refused", "connect", "opened", "opened", "close")
REFUSAL = {"code": "full", "retry_after_ms": 100}


def event(chance: random.Random) -> list:
    return chance.choice(
        (
            ["result", {"seq": chance.randrange(12)}],
            ["result", {"seq": chance.randrange(12)}],
            ["dropped", {"seq": chance.randrange(12), "reason": chance.choice(list(Drop)).value}],
            ["error", {"code": "bad_frame", "message": "?"}],
            ["ready", chance.choice((TERMS, SLOW, UNBOUND))],
            ["ready", TERMS],
            ["waiting", {"position": 2, "retry_after_ms": 50}],
            ["pace", {"interval_ms": chance.choice((0, 20, 80, 300))}],
            ["drain", {"reconnect_after_ms": 30}],
        )
    )


def last(name: str) -> dict:
    return tell_python(STORIES[name])[-1]


def test_never_more_than_the_window_unanswered():
    story = tell_python(STORIES["never_more_than_the_window_unanswered"])
    assert max(len(step["unanswered"]) for step in story) == TERMS["window"]
    assert last("never_more_than_the_window_unanswered")["outcome"] == 2


def test_replaced_pictures_are_counted_and_never_sent():
    assert (
        last("newer_picture_replaces_the_one_that_waits")["counts"] | {"results": 1, "sent": 2, "replaced": 1}
        == (last("newer_picture_replaces_the_one_that_waits")["counts"])
    )


def test_newest_picture_goes_as_soon_as_there_is_a_connection():
    told = last("picture_offered_while_offline_waits_alone")
    assert (told["outcome"], told["counts"]["replaced"], told["counts"]["sent"]) == (0, 1, 1)


def test_pictures_keep_to_the_interval():
    assert [step["outcome"] for step in tell_python(STORIES["pictures_keep_to_the_interval"])][-2:] == [None, 1]


def test_rate_falls_once_for_losses_that_come_together():
    assert last("drops_to_load_slow_a_client_down_once")["interval"] == pytest.approx(40 / 0.67)


def test_rate_rises_by_one_picture_a_second_every_second():
    slowed = 1000 / (40 / 0.67)
    assert 1000 / last("results_make_a_slowed_client_faster")["interval"] == pytest.approx(
        slowed + 2 / slowed, rel=0.01
    )


def test_waits_double_up_to_ten_seconds():
    story = tell_python(STORIES["waits_double_with_full_jitter"])
    waits = [step["retry_in_ms"] for step in story if step["retry_in_ms"] is not None]
    assert waits == [250, 500, 1000, 2000, 4000, 5000, 5000, 5000]  # jitter is 0.5 here


def test_unanswered_frames_are_accounted_for():
    for name in STORIES:
        counts = last(name)["counts"]
        answered = counts["results"] + sum(counts["dropped"].values()) + counts["errors"] + counts["lost"]
        assert counts["sent"] == answered + len(last(name)["unanswered"])


def test_rate_in_the_long_run_is_the_agreed_one():
    offers = [step for now in range(20, 2020) for step in send(now)]
    counts = tell_python(live(*offers, terms={**TERMS, "window": 1000}))[-1]["counts"]
    assert counts["sent"] == pytest.approx(2000 / TERMS["interval_ms"], abs=1)
