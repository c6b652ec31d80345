"""The limit on frames in work, against simulated services at saturation: it shortens queues and costs no throughput."""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest

from framelane.server.lanes.gauge import Gauge, Reading
from framelane.server.lanes.inflight import Inflight


@dataclass
class Stage:
    """Servers that take what waits, up to a batch at a time."""

    servers: int
    seconds: Callable[[random.Random], float]
    batch: int = 1
    waiting: deque = field(default_factory=deque)
    busy: int = 0


class Service:
    """Stages in a row in front of which there is always another frame, up to one for each client."""

    def __init__(
        self, *stages: Stage, credits: int, alone_s: float = 0.0, limited: bool = True, clients: float = math.inf
    ) -> None:
        self.stages = stages
        self.clients = clients
        self.credits = credits
        self.limited = limited
        self.gauge, self.inflight = Gauge(), Inflight()
        self.inflight.normal_s = alone_s
        self.dice = random.Random(1)
        self.now = self.next_tick = 0.0
        self.events: list[tuple[float, int, int, list[float]]] = []
        self.in_work = self.finished = self.count = 0
        self.taken_s = 0.0

    def run(self, seconds: float) -> tuple[float, float]:
        """Go on for a while; frames per second, and the mean seconds that a frame was in work."""
        until, finished, taken = self.now + seconds, self.finished, self.taken_s
        self.fill()
        while self.events[0][0] < until:
            self.now, _, index, frames = heappop(self.events)
            self.stages[index].busy -= 1
            self.pass_on(index, frames)
            self.begin(index)
            self.fill()
            if self.now >= self.next_tick:
                self.next_tick = self.now + 0.1
                reading = self.gauge.read(self.now)
                if reading is not None:
                    self.inflight.turn(reading, self.credits, reading.backlog_rate)
        self.now = until
        done = self.finished - finished
        return done / seconds, (self.taken_s - taken) / done

    def fill(self) -> None:
        limit = min(self.credits, self.clients, self.inflight.limit if self.limited else math.inf)
        while self.in_work < limit:
            self.in_work += 1
            self.stages[0].waiting.append(self.now)
            self.begin(0)

    def begin(self, index: int) -> None:
        stage = self.stages[index]
        while stage.waiting and stage.busy < stage.servers:
            frames = [stage.waiting.popleft() for _ in range(min(stage.batch, len(stage.waiting)))]
            stage.busy += 1
            self.count += 1
            heappush(self.events, (self.now + stage.seconds(self.dice), self.count, index, frames))

    def pass_on(self, index: int, frames: list[float]) -> None:
        if index + 1 < len(self.stages):
            self.stages[index + 1].waiting.extend(frames)
            self.begin(index + 1)
            return
        for submitted in frames:
            self.in_work -= 1
            self.finished += 1
            self.taken_s += self.now - submitted
            self.gauge.finished(self.now, self.now - submitted, self.clients > self.in_work + 1)


def always(seconds: float) -> Callable[[random.Random], float]:
    return lambda _dice: seconds


def around(seconds: float) -> Callable[[random.Random], float]:
    return lambda dice: dice.expovariate(1 / seconds)


SERVICES = {
    "one slot, many workers": lambda: ([Stage(16, always(0.002)), Stage(1, always(0.008))], 48, 0.010),
    "a slot per core": lambda: ([Stage(2, always(0.003)), Stage(2, always(0.003))], 6, 0.006),
    "four slots": lambda: ([Stage(16, always(0.004)), Stage(4, always(0.008))], 48, 0.012),
    "batches of eight": lambda: ([Stage(16, always(0.002)), Stage(1, always(0.008), batch=8)], 48, 0.010),
    "workers are the bottleneck": lambda: ([Stage(4, always(0.020)), Stage(1, always(0.002))], 32, 0.022),
    "services that vary": lambda: ([Stage(4, around(0.008)), Stage(2, around(0.004))], 24, 0.012),
    "one server does all": lambda: ([Stage(1, around(0.010))], 24, 0.010),
    "what is normal is unknown": lambda: ([Stage(16, always(0.002)), Stage(1, always(0.008))], 48, 0.0),
    "what is normal was much shorter": lambda: ([Stage(8, always(0.050)), Stage(4, always(0.040))], 32, 0.004),
}


@pytest.mark.parametrize("name", SERVICES)
def test_limit_costs_no_throughput_at_saturation(name: str) -> None:
    stages, credits, alone_s = SERVICES[name]()
    limited = Service(*stages, credits=credits, alone_s=alone_s)
    stages, credits, alone_s = SERVICES[name]()
    free = Service(*stages, credits=credits, alone_s=alone_s, limited=False)
    for service in (limited, free):
        service.run(20)
    assert limited.run(60)[0] >= 0.98 * free.run(60)[0]


def test_frames_do_not_queue_behind_the_limit() -> None:
    stages, credits, alone_s = SERVICES["one slot, many workers"]()
    service = Service(*stages, credits=credits, alone_s=alone_s)
    service.run(5)
    rate, taken_s = service.run(10)
    assert rate == pytest.approx(125, rel=0.01)
    assert taken_s <= 0.04, "without a limit a frame is in work for 0.38 s"


def test_frames_do_not_queue_in_the_workers_either_if_clients_are_fewer_than_credits() -> None:
    stages, credits, alone_s = SERVICES["one slot, many workers"]()
    service = Service(*stages, credits=credits, alone_s=alone_s, clients=24)
    service.run(10)
    rate, taken_s = service.run(10)
    assert rate == pytest.approx(125, rel=0.01)
    assert taken_s <= 0.04, "without a limit a frame is in work for 0.19 s"


def test_limit_follows_a_service_that_becomes_slow_and_recovers() -> None:
    slow = [0.008]
    service = Service(Stage(16, always(0.002)), Stage(4, lambda _dice: slow[0]), credits=48, alone_s=0.010)
    service.run(10)
    slow[0] = 0.080
    service.run(10)
    assert service.run(20)[0] >= 0.97 * 50
    slow[0] = 0.008
    service.run(10)
    assert service.run(10)[0] >= 0.97 * 500


def test_limit_grows_when_slots_join() -> None:
    slots = Stage(1, always(0.008))
    service = Service(Stage(16, always(0.002)), slots, credits=48, alone_s=0.010)
    service.run(10)
    slots.servers = 4
    service.run(10)
    assert service.run(10)[0] >= 0.97 * 500


def reading(*, frames: int = 100, backlog: int = 0, mean_s: float = 0.01) -> Reading:
    return Reading(1.0, frames, backlog, backlog / 125, mean_s, mean_s)


def test_no_limit_without_a_backlog() -> None:
    inflight = Inflight()
    for _ in range(20):
        inflight.turn(reading(mean_s=0.5), 6, 1000.0)
    assert inflight.limit == math.inf


def test_longer_time_is_normal_only_in_quiet_times() -> None:
    inflight = Inflight()
    inflight.normal_s = 0.01
    inflight.turn(reading(frames=100, mean_s=0.1), 6, 125.0)
    assert inflight.normal_s == 0.01
    for _ in range(30):
        inflight.turn(reading(frames=10, mean_s=0.1), 6, 125.0)
    assert inflight.normal_s == pytest.approx(0.1, rel=0.01)
    for _ in range(30):
        inflight.turn(reading(frames=100, mean_s=0.02), 6, 125.0)
    assert inflight.normal_s == pytest.approx(0.02, rel=0.01)


def test_operators_limit_is_changed_by_nothing() -> None:
    inflight = Inflight(fixed=9)
    inflight.expect(0.01)
    for _ in range(5):
        inflight.turn(Reading(1.0, 100, 100, 1.0, 0.2, 0.1), credits=20, capacity=100)
        assert inflight.limit == 9
