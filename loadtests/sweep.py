"""Sweeps: what limits a server? Each explanation predicts one number; most of them shall fail. Decides without I/O.

An experiment has a baseline, configurations that each move exactly one variable of it (anything else is refused: a
result that two causes explain explains nothing), and hypotheses. A hypothesis names a configuration and predicts what
moving its variable does to one figure, as a ratio to the baseline:

    "if the device were the limit, one twice as fast would double the throughput": predicts = 2.0

    survived    the measured ratio lies within the prediction's band, and its interval excludes "no effect"
    falsified   the interval lies outside of the band altogether
    undecided   neither: more rounds, or a quieter machine

Every round measures all configurations one after another, in an order that changes from round to round, and ratios are
taken within a round: what drifts over minutes cancels out. The interval is Student's, 95 %, of the logarithms of the
rounds' ratios. What is undecided then may be repeated a few times; looking more than once makes the 95 % a little less
than that, which the distance between a prediction and "no effect" can afford.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Metric = Literal["throughput", "p50_ms", "p95_ms"]


_WORTH_NAMING = 0.3


class SweepError(ValueError):
    """A sweep that cannot be run, or would prove nothing; the message says why."""


class Verdict(StrEnum):
    """What became of a hypothesis."""

    SURVIVED = "survived"
    FALSIFIED = "falsified"
    UNDECIDED = "undecided"


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that may vary: the server, what it runs on, and the load. Each field is one variable, each option too.

    Attributes:
        server: "product" (``framelane serve``) or "legacy" (``loadtests/legacy``, with three faults).
        pipeline, device, models: as in ``framelane serve``.
        options: settings of the pipeline; each key is a variable of its own.
        workers, slots: of the product.
        inline, process, broadcast: faults of the legacy server.
        parallel: threads or processes of the legacy server where a fault is off.
        send_ms: for so long each message holds its event loop (SIMULATED).
        connections: clients, all generators together.
        window: frames in flight per client.
        generators: processes that the clients are spread over.
        rate: most frames per second of one generator process; 0 for no limit.
        image: width and height of the frames in pixels.
    """

    server: Literal["product", "legacy"] = "product"
    pipeline: str = "face_mesh"
    device: str = "cpu"
    options: dict[str, str | float | int | bool] = {}
    workers: Count = 2
    slots: Count = 1
    inline: bool = True
    process: bool = True
    broadcast: bool = True
    parallel: Count = 2
    send_ms: Annotated[float, Meta(ge=0)] = 0.0
    connections: Count = 8
    window: Count = 1
    generators: Count = 1
    rate: Annotated[float, Meta(ge=0)] = 0.0
    image: Annotated[str, Meta(pattern=r"^\d+x\d+$")] = "640x480"

    def variables(self) -> dict[str, Any]:
        """Every variable by its name; options as ``options.name``."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "options"}
        return {**fields, **{f"options.{name}": value for name, value in self.options.items()}}


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An explanation and the number by which it may fail: a ratio, or a bound of it.

    Attributes:
        configuration: whose variable is moved.
        says: the explanation, in a sentence.
        metric: the figure.
        predicts: its ratio to the baseline if the explanation is true.
        tolerance: how far from it still counts, as a share.
        at_least, at_most: bounds instead, where the explanation gives no more than that.
    """

    configuration: str
    says: str
    metric: Metric = "throughput"
    predicts: Positive | None = None
    tolerance: Annotated[float, Meta(gt=0, lt=1)] = 0.15
    at_least: Positive | None = None
    at_most: Positive | None = None

    @property
    def band(self) -> tuple[float, float]:
        """The ratios that the explanation allows."""
        if self.predicts is not None:
            return self.predicts * (1 - self.tolerance), self.predicts * (1 + self.tolerance)
        return self.at_least or 0.0, self.at_most or math.inf

    @property
    def prediction(self) -> str:
        """The number, for people."""
        if self.predicts is not None:
            return f"{self.predicts:g} × ± {self.tolerance:.0%}"
        return f"≥ {self.at_least:g} ×" if self.at_least is not None else f"≤ {self.at_most:g} ×"


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline, its configurations (each one variable away), and what is claimed about them."""

    name: str
    says: str
    baseline: Setup
    configurations: dict[str, Setup]
    hypotheses: dict[str, Hypothesis]
    planted: str = ""
    """The hypothesis that is true by construction, where there is one."""

    def moved(self, configuration: str) -> str:
        """The variable that a configuration moves, and from what to what."""
        (name,) = differences(self.baseline, self.configurations[configuration])
        before, after = (setup.variables().get(name) for setup in (self.baseline, self.configurations[configuration]))
        return f"{name}: {_word(before)} → {_word(after)}"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of one setup gave."""

    throughput: float
    p50_ms: float
    p95_ms: float
    dropped: int = 0
    errors: int = 0
    generator_busy: float = 0.0
    """Cores that the busiest generator process used: at 1 it measures itself."""
    limit: str = ""
    """What the server itself names as its limit, if it names one."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis after the rounds. ``margin`` is how far the value lies inside (above 0) or outside of the band."""

    hypothesis: str
    configuration: str
    metric: str
    prediction: str
    band: tuple[float, float]
    value: float
    low: float
    high: float
    rounds: int
    verdict: Verdict
    margin: float


# -- reading a file --------------------------------------------------------------------------------------------------


def parse_sweep(text: str) -> list[Experiment]:
    """Experiments from the text of a TOML file: ``[experiments.NAME]`` with ``baseline``, ``configurations``,
    ``hypotheses``, ``says``, and ``like`` to take over what is not given from an experiment further up.

    Raises:
        SweepError: it cannot be read, moves not exactly one variable, or claims what it does not measure.
    """
    try:
        tables = tomllib.loads(text)["experiments"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise SweepError(f"sweep: no [experiments.NAME] could be read: {error}") from None
    whole: dict[str, dict[str, Any]] = {}
    found = []
    for name, table in tables.items():
        whole[name] = _inherited(name, table, whole)
        if not whole[name].get("template", False):
            found.append(_experiment(name, whole[name]))
    return found


def _inherited(name: str, table: Mapping[str, Any], earlier: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    unknown = set(table) - {"like", "says", "baseline", "configurations", "hypotheses", "planted", "template"}
    if unknown:
        raise SweepError(f"{name}: unknown keys: {', '.join(sorted(unknown))}")
    if "like" not in table:
        return dict(table)
    if table["like"] not in earlier:
        raise SweepError(f"{name}: like = {table['like']!r} names no experiment further up")
    model = {key: value for key, value in earlier[table["like"]].items() if key != "template"}
    merged = {**model, **table}
    merged["baseline"] = _over(model.get("baseline", {}), table.get("baseline", {}))
    for part in ("configurations", "hypotheses"):
        merged[part] = {**model.get(part, {}), **table.get(part, {})}
    return merged


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    options = {**below.get("options", {}), **above.get("options", {})}
    return {**below, **above, **({"options": options} if options else {})}


def _experiment(name: str, table: Mapping[str, Any]) -> Experiment:
    try:
        baseline = msgspec.convert(table.get("baseline", {}), Setup)
        changes = msgspec.convert(table.get("configurations", {}), dict[str, dict[str, Any]])
        setups = {
            key: msgspec.convert(_over(table.get("baseline", {}), change), Setup) for key, change in changes.items()
        }
        hypotheses = msgspec.convert(table.get("hypotheses", {}), dict[str, Hypothesis])
    except msgspec.ValidationError as error:
        raise SweepError(f"{name}: {error}") from None
    for key, setup in setups.items():
        moved = differences(baseline, setup)
        if len(moved) != 1:
            what = f"moves {len(moved)} variables ({', '.join(moved)})" if moved else "moves nothing"
            raise SweepError(f"{name}.{key} {what}; a configuration moves exactly one, or it proves nothing")
    for key, hypothesis in hypotheses.items():
        _check_hypothesis(f"{name}.{key}", hypothesis, setups)
    planted = table.get("planted", "")
    if planted and planted not in hypotheses:
        raise SweepError(f"{name}: planted = {planted!r} names no hypothesis")
    return Experiment(
        name=name, says=table.get("says", ""), baseline=baseline, configurations=setups, hypotheses=hypotheses,
        planted=planted,
    )  # fmt: skip


def _check_hypothesis(name: str, hypothesis: Hypothesis, setups: Mapping[str, Setup]) -> None:
    if hypothesis.configuration not in setups:
        raise SweepError(f"{name} is about {hypothesis.configuration!r}, which is no configuration")
    given = [hypothesis.predicts, hypothesis.at_least, hypothesis.at_most]
    if sum(value is not None for value in given) != 1:
        raise SweepError(f"{name} must predict exactly one number: predicts, at_least or at_most")
    low, high = hypothesis.band
    if low <= 1 <= high:
        raise SweepError(
            f"{name} allows for no effect at all ({hypothesis.prediction}), so it could never be falsified"
        )


def differences(baseline: Setup, setup: Setup) -> list[str]:
    """The names of the variables in which two setups differ."""
    before, after = baseline.variables(), setup.variables()
    names = dict.fromkeys([*before, *after])
    return [name for name in names if before.get(name) != after.get(name)]


def order(experiment: Experiment, number: int) -> list[str]:
    """The runs of a round, the baseline as "": rotated by one each round, and every other round backwards."""
    names = ["", *experiment.configurations]
    turned = names[number % len(names) :] + names[: number % len(names)]
    return turned if number % 2 == 0 else turned[::-1]


# -- judging ---------------------------------------------------------------------------------------------------------


def judge(experiment: Experiment, rounds: Sequence[Mapping[str, Measurement]]) -> list[Result]:
    """Every hypothesis against the rounds so far, each a measurement by configuration ("" is the baseline)."""
    return [_judge(name, hypothesis, rounds) for name, hypothesis in experiment.hypotheses.items()]


def _judge(name: str, hypothesis: Hypothesis, rounds: Sequence[Mapping[str, Measurement]]) -> Result:
    ratios = []
    for found in rounds:
        if "" in found and hypothesis.configuration in found:
            before, after = (getattr(found[key], hypothesis.metric) for key in ("", hypothesis.configuration))
            if before > 0 and after > 0:
                ratios.append(after / before)
    value, low, high = interval(ratios)
    return Result(
        hypothesis=name,
        configuration=hypothesis.configuration,
        metric=hypothesis.metric,
        prediction=hypothesis.prediction,
        band=hypothesis.band,
        value=value,
        low=low,
        high=high,
        rounds=len(ratios),
        verdict=verdict(value, low, high, hypothesis.band),
        margin=margin(value, hypothesis.band),
    )


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios with its 95 % interval; one ratio alone could be anything."""
    if not ratios:
        return math.nan, 0.0, math.inf
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logarithms)
    if len(ratios) == 1:
        return math.exp(mean), 0.0, math.inf
    half = student(len(ratios) - 1) * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student(freedom: int) -> float:
    """Student's t for a two-sided 95 % interval; beyond ten degrees of freedom slightly too wide."""
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 2.2


def verdict(value: float, low: float, high: float, band: tuple[float, float]) -> Verdict:
    """See the module."""
    if high < band[0] or low > band[1]:
        return Verdict.FALSIFIED
    if band[0] <= value <= band[1] and not low <= 1 <= high:
        return Verdict.SURVIVED
    return Verdict.UNDECIDED


def margin(value: float, band: tuple[float, float]) -> float:
    """Distance to the nearer end of the band, as a share of it; below 0 outside; not-a-number without a value."""
    if value != value:
        return math.nan
    ends = [end for end in band if 0 < end < math.inf]
    inside = band[0] <= value <= band[1]
    distance = min(abs(value - end) / end for end in ends)
    return distance if inside else -distance


def conclusion(experiment: Experiment, results: Sequence[Result]) -> str:
    """What the sweep says, in a sentence."""
    survivors = [result.hypothesis for result in results if result.verdict is Verdict.SURVIVED]
    open_ones = [result.hypothesis for result in results if result.verdict is Verdict.UNDECIDED]
    rest = f"; undecided: {', '.join(open_ones)}" if open_ones else ""
    if len(survivors) == 1:
        others = "" if open_ones else ", and every other explanation is falsified"
        return f"{experiment.name}: {survivors[0]}{others}{rest}"
    if survivors:
        return f"{experiment.name}: not told apart: {', '.join(survivors)} all survived{rest}"
    closest = max(results, key=share, default=None)
    part = ""
    if closest is not None and share(closest) > _WORTH_NAMING:
        part = f"; {closest.hypothesis} comes closest: about {share(closest):.0%} of the time per frame is of that kind"
    if open_ones:
        return f"{experiment.name}: nothing survived yet{rest}{part}"
    if part:
        return f"{experiment.name}: no explanation is enough alone{part}"
    return f"{experiment.name}: every explanation is falsified: the limit is something that nobody named"


def share(result: Result) -> float:
    """The part of a frame's time that an explanation accounts for, where several stages share it one after another.

    By Amdahl's law: a stage that takes the part s, made p times as fast, gives 1 / (1 − s + s / p) of the throughput.
    0 where the explanation predicts no number, or less throughput, or something other than throughput.
    """
    predicted = (result.band[0] + result.band[1]) / 2
    if result.metric != "throughput" or not 1 < predicted < math.inf or not result.value > 1:
        return 0.0
    return (1 - 1 / result.value) / (1 - 1 / predicted)


def _word(value: Any) -> str:
    return "(unset)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
