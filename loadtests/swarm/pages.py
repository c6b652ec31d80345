"""The report of a run: what it found, the curves, every user. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from framelane.loadtests.charts import Limit, LineChart, Series
from framelane.loadtests.overload import books
from framelane.loadtests.overload.outcomes import SICK_LAG_MS, Summary
from framelane.loadtests.report import Cell, Finding, Report, Section, Table, Tone
from framelane.loadtests.windows import DISTURBED

from . import findings
from .findings import Level, Objective, UserFigures
from .ledger import Found
from .run import Course

_TONES: dict[str, Tone] = {"met": "good", "missed": "bad", "void": "open"}
_WORDS = {
    "superseded": "a newer frame of the same user came before this one was begun",
    "expired": "not served within the deadline",
    "not_admitted": "sent before `ready`",
    "rate_limited": "too much for this user",
    "invalid": "no usable picture",
    "failed": "the pipeline failed",
    "draining": "the server was going away",
    "lost": "the connection ended first",
    "unanswered": "no answer until the end of the wait",
    "replaced": "never sent: a newer one came while the user could not send",
    "waiting": "never sent: the user waited for a place",
    "away": "never sent: the user had no connection",
    "error": "the server took it for no frame",
    "result": "answered",
}


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, for the head of the report."""

    fps: float
    audience: str
    shape: str
    objective: Objective
    facts: dict[str, Any]
    own_server: bool = False
    cores: int = 1


def describe(subject: Subject, course: Course) -> tuple[Report, findings.Verdict, list[UserFigures]]:
    """The report, whether the objective was met, and every user's figures."""
    found = course.found
    simulated = bool(course.before.get("device", {}).get("simulated"))
    title = f"Swarm: {course.before.get('pipeline', '?')} on {course.before.get('device', {}).get('used', '?')}"
    if found is None:
        said = (Finding("interrupted before anything was measured", "open"),)
        nothing = Report(
            name="swarm", title=title, findings=said, sections=(), facts=subject.facts, simulated=simulated,
            complete=False,
        )  # fmt: skip
        return nothing, "void", []
    honest = findings.of_users(found.recorded.frames, findings.numbers_of(found.users, honest=True))
    end = float(found.recorded.frames.intended.max()) if len(found.recorded.frames.intended) else 0.0
    marks = [mark for mark in course.marks if mark.start + 1 < end]
    marks = [msgspec.structs.replace(mark, stop=min(mark.stop, end)) for mark in marks]
    levels = [findings.level(found, mark, honest, course.samples, subject.objective) for mark in marks]
    users = findings.per_user(found)
    verdict = findings.overall(levels)
    failed = found.sum("failed")
    if failed and verdict == "met":
        verdict = "missed"
    sections = [
        _curve(levels, subject.objective),
        _course(found, subject.objective),
        _fates(honest),
        _people(users, found),
    ]
    if len({user.persona for user in users}) > 1 and marks:
        sections.insert(2, _personas(findings.by_persona(found, marks[0].start, marks[-1].stop), found))
    sections.append(_server(course))
    report = Report(
        name="swarm",
        title=title,
        findings=(
            *_found(levels, subject),
            *_disturbance(course, subject),
            *_drift(levels, course, subject),
            *_connections(found, subject),
            *_books(course, found, subject),
        ),
        sections=tuple(sections),
        facts=subject.facts,
        data={
            "verdict": verdict,
            "objective": subject.objective,
            "levels": [level.record() for level in levels],
            "slices": findings.slices(honest),
            "users": users,
            "fates": findings.fates(honest),
            "failed_connects": failed,
            "lost_connections": found.sum("lost"),
            "refused": found.sum("refused"),
            "foreign_cores": round(course.foreign, 3),
            "server_memory": course.memory,
            "status": {"before": course.before, "after": course.after},
            "server": books.ServerBooks.of(course.counted),
        },
        simulated=simulated,
        complete=not course.interrupted,
    )
    return report, verdict, users


# -- findings --------------------------------------------------------------------------------------------------------


def _found(levels: Sequence[Level], subject: Subject) -> list[Finding]:
    found = [Finding(text, "open") for text in findings.why_void(levels)]
    for level in levels:
        summary = level.summary
        text = (
            f"{level.users} users at {subject.fps:g} fps: {summary.delivery:.2%} of {summary.sent:,} frames delivered, "
            f"age p50 {summary.age.p50:.0f} ms, p95 {summary.age.p95:.0f} ms, p99 {summary.age.p99:.0f} ms, "
            f"{summary.results / summary.seconds:.0f} results/s: {level.verdict}"
        )
        if level.unserved:
            text += f"; {level.unserved:.1%} of what was due was never sent, for want of a place or a connection"
        found.append(Finding(text, _TONES[level.verdict]))
    held = [level.users for level in levels if level.verdict == "met"]
    wanted = f"delivery ≥ {subject.objective.delivery:.1%}"
    wanted += f" and p50 ≤ {subject.objective.p50_ms:g} ms" if subject.objective.p50_ms else ""
    if len({level.users for level in levels}) > 1:
        most = f"the most users with {wanted}: {max(held)}" if held else f"no level held {wanted}"
        found.append(Finding(most, "good" if held else "bad"))
    busy = [level for level in levels if level.cores.get("generator", 0) > findings.BUSY]
    found += [
        Finding(f"with {level.users} users the generator used {level.cores['generator']:.2f} cores: give it "
                "more --processes, or its figures may be its own", "open")
        for level in busy
    ]  # fmt: skip
    tracked = [level for level in levels if level.tracked == level.tracked]
    if tracked:
        shares = ", ".join(f"{level.tracked:.0%} with {level.users}" for level in tracked)
        found.append(Finding(f"tracked, so without the detector: {shares} users"))
    return found


def _disturbance(course: Course, subject: Subject) -> list[Finding]:
    """What other programs took away, on a machine whose cores are known."""
    if course.foreign <= DISTURBED * subject.cores:
        return []
    text = f"other programs of the generator's machine used {course.foreign:.2f} of its {subject.cores} cores meanwhile"
    return [Finding(f"{text}: if the server runs here too, it had that much less", "open")]


def _drift(levels: Sequence[Level], course: Course, subject: Subject) -> list[Finding]:
    """What a soak is for: whether its end is as good as its beginning."""
    if subject.shape != "soak" or len(levels) < 2:
        return []
    first, last = levels[0].summary, levels[-1].summary
    text = (
        f"from the first to the last part p95 went from {first.age.p95:.0f} to {last.age.p95:.0f} ms, delivery from "
        f"{first.delivery:.2%} to {last.delivery:.2%}"
    )
    before, after = course.memory
    if before:
        text += f", the server's memory (PSS) from {before >> 20} to {after >> 20} MiB"
    return [Finding(text)]


def _connections(found: Found, subject: Subject) -> list[Finding]:
    said = []
    for name, what in (("failed", "failed connects"), ("lost", "connections lost"), ("refused", "connects refused")):
        table = found.sum(name)
        if table:
            reasons = ", ".join(f"{count} × {reason}" for reason, count in table.items())
            tone: Tone = "bad" if name == "failed" or subject.audience == "steady" else "open"
            said.append(Finding(f"{sum(table.values())} {what}: {reasons}", tone))
    waited = {number for account in found.accounts for number in account.waited}
    if waited:
        said.append(
            Finding(
                f"{len(waited)} users were told to wait: the server promises each client its --client-fps (10 unless "
                f"told otherwise) of what it can do; start it with --client-fps {subject.fps:g} or --max-clients",
                "open",
            )
        )
    paced: dict[int, int] = {}
    for account in found.accounts:
        paced.update(account.paced)
    if paced:
        text = f"{len(paced)} users were asked to send less often, at most once in {max(paced.values())} ms"
        obeys = "and did not: an open loop goes on" if subject.audience == "steady" else "and those who follow it did"
        said.append(Finding(f"{text}, {obeys}", "open"))
    return said


def _books(course: Course, found: Found, subject: Subject) -> list[Finding]:
    if not subject.own_server or subject.audience == "hostile":
        return []
    wrong = books.check(books.ServerBooks.of(course.counted), books.ClientBooks.of(found.recorded))
    if wrong:
        return [Finding(f"the books of server and users do not agree: {'; '.join(wrong)}", "bad")]
    return [Finding("every frame has exactly one fate, at the server and at the users", "good")]


# -- sections --------------------------------------------------------------------------------------------------------


def _curve(levels: Sequence[Level], objective: Objective) -> Section:
    columns = ("users", "verdict", "delivery", "unserved", "p50 ms", "p95 ms", "p99 ms", "sent", "results/s", "tracked",
               "connect p50 ms", "connect p95 ms", "lag p99 ms", "jain")  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            level.users, level.verdict, level.summary.delivery, level.unserved, level.summary.age.p50,
            level.summary.age.p95, level.summary.age.p99, level.summary.sent,
            level.summary.results / level.summary.seconds, level.tracked, level.connect_p50_ms, level.connect_p95_ms,
            level.summary.lag.p99, level.summary.jain,
        )
        for level in levels
    ]  # fmt: skip
    tables = [Table(columns=columns, rows=tuple(rows), tones=_TONES)]
    roles = list(dict.fromkeys(role for level in levels for role in level.cores))
    if roles:
        used: list[tuple[Cell, ...]] = [
            (level.users, *(level.cores.get(role) for role in roles), *(level.cpu_ms.get(role) for role in roles))
            for level in levels
        ]
        named = (*(f"{role}, cores" for role in roles), *(f"{role}, ms per result" for role in roles))
        tables.append(Table(columns=("users", *named), rows=tuple(used)))
    x = tuple(float(level.users) for level in levels)
    delivery = tuple(100 * level.summary.delivery for level in levels)
    charts = (
        LineChart(
            title="Delivery by users", x_name="users", y_name="% of frames sent", from_zero=False,
            series=(Series(name="delivery", x=x, y=delivery),),
            limits=(Limit(name="objective", y=100 * objective.delivery),),
        ),
        LineChart(
            title="Age by users, from the moment a frame was due", x_name="users", y_name="ms",
            series=tuple(
                Series(name=name, x=x, y=tuple(getattr(level.summary.age, name) for level in levels))
                for name in ("p50", "p95", "p99")
            ),
            limits=(Limit(name="p50 at most", y=objective.p50_ms),) if objective.p50_ms else (),
        ),
    )  # fmt: skip
    text = f"A level counts only if the generator's own lag p99 is at most {SICK_LAG_MS:g} ms."
    return Section(title="Levels", text=(text,), charts=charts if len(set(x)) > 1 else (), tables=tuple(tables))


def _course(found: Found, objective: Objective) -> Section:
    honest = findings.of_users(found.recorded.frames, findings.numbers_of(found.users, honest=True))
    parts = findings.slices(honest)
    x = tuple(part.at for part in parts)

    def series(name: str, field: str, factor: float = 1.0, dashed: bool = False) -> Series:
        return Series(name=name, x=x, y=tuple(factor * getattr(part, field) for part in parts), dashed=dashed)

    charts = (
        LineChart(title="Frames over time", x_name="seconds", y_name="per second",
                  series=(series("due", "offered_fps", dashed=True), series("results", "result_fps"))),
        LineChart(title="Age over time", x_name="seconds", y_name="ms", series=(series("p50", "p50_ms"),
                  series("p95", "p95_ms")), limits=(Limit(name="p50 at most", y=objective.p50_ms),)),
        LineChart(title="Users who sent", x_name="seconds", y_name="users", series=(series("users", "users"),)),
    )  # fmt: skip
    return Section(title="The course of the run", charts=charts)


def _fates(frames: Any) -> Section:
    counts = findings.fates(frames)
    all_frames = sum(counts.values())
    rows = tuple((name, count, f"{count / all_frames:.3%}", _WORDS.get(name, "")) for name, count in counts.items())
    return Section(title="Every frame", tables=(Table(columns=("fate", "frames", "share", ""), rows=rows),))


def _personas(summaries: Mapping[str, Summary], found: Found) -> Section:
    honest = {user.persona: user.honest for user in found.users.values()}
    rows = [
        (name, "honest" if honest[name] else "hostile", summary.sent, summary.delivery, summary.age.p50,
         summary.age.p95, ", ".join(f"{count} {fate}" for fate, count in summary.fates.items() if fate != "result"))
        for name, summary in sorted(summaries.items())
    ]  # fmt: skip
    columns = ("persona", "", "sent", "delivery", "p50 ms", "p95 ms", "else")
    text = "Age counts from the moment a frame was due in the client, so it includes the persona's own network."
    tables = [Table(columns=columns, rows=tuple(rows))]
    strangers = found.sum("strangers")
    if strangers:
        named = tuple((str(name), count) for name, count in sorted(strangers.items()))
        tables.append(Table(columns=("what became of those who do not keep to the protocol", "times"), rows=named))
    return Section(title="By persona", text=(text,), tables=tuple(tables))


def user_table(users: Sequence[UserFigures], folded: str = "") -> Table:
    """Every user, as a table."""
    columns = UserFigures.__struct_fields__
    rows = tuple(tuple(getattr(user, name) for name in columns) for user in users)
    return Table(columns=columns, rows=rows, folded=folded)


def _people(users: Sequence[UserFigures], found: Found) -> Section:
    enrolled = found.users
    honest = [user for user in users if enrolled[user.number].honest]
    ratios = sorted(user.delivery for user in honest if user.sent)
    text = []
    if ratios:
        worst, tenth = ratios[0], ratios[len(ratios) // 10]
        text = [
            f"{len(honest)} honest users: the worst got {worst:.1%} of its frames, the last tenth at most {tenth:.1%}."
        ]
    median = [user.p50_ms for user in honest if math.isfinite(user.p50_ms)]
    if median:
        low, high = np.percentile(median, (5, 95))
        text.append(f"Nine of ten users have a median age between {low:.0f} and {high:.0f} ms.")
    return Section(title="Users", text=tuple(text), tables=(user_table(users, "every user"),))


def _server(course: Course) -> Section:
    before, after = _flat(course.before), _flat(course.after)
    rows = tuple((name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after)))
    counted: list[tuple[Cell, ...]] = [
        (name if not label else f"{name}: {label}", value)
        for (name, label), value in sorted(course.counted.items())
        if value and not name.endswith(("_bucket", "_created"))
    ]
    return Section(
        title="The server's own figures",
        tables=(
            Table(columns=("/v1/status", "before", "after"), rows=rows),
            Table(columns=("/metrics, since the start", ""), rows=tuple(counted), folded="what it counted meanwhile"),
        ),
    )


def _flat(value: Any, name: str = "") -> dict[str, Cell]:
    """Nested tables as one, lists by their length."""
    if isinstance(value, dict):
        found: dict[str, Cell] = {}
        for key, inner in value.items():
            found.update(_flat(inner, f"{name}.{key}" if name else key))
        return found
    if isinstance(value, list):
        return {name: len(value)}
    return {name: value}
