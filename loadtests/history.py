"""Production's history for the gate: from Prometheus' HTTP API, or from a file.

The file is CSV with a header, ``time,p95_ms,per_second``: time in ISO 8601 (UTC unless it says otherwise) or seconds
since 1970, the end of the step that the row is about. An empty p95 is a step without traffic.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from framelane.loadtests.gate import GateError, Sample

P95_QUERY = "histogram_quantile(0.95, sum by (le) (rate(framelane_result_age_seconds_bucketSELECTOR[STEP]))) * 1000"
THROUGHPUT_QUERY = "sum(rate(framelane_results_delivered_totalSELECTOR[STEP]))"
_TIMEOUT_S = 30.0


class _Matrix(msgspec.Struct, frozen=True):
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    result: list[_Matrix] = []
    result_type: str = msgspec.field(name="resultType", default="matrix")


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data = _Data()
    error: str = ""


class Prometheus:
    """A Prometheus server.

    Args:
        url: its address, for example http://localhost:9090.
        selector: labels that choose the replica, for example ``instance="a:8000"``; "" is everything it has.
    """

    def __init__(self, url: str, selector: str = "") -> None:
        self._url = url.rstrip("/")
        self._selector = f"{{{selector}}}" if selector else ""

    def samples(self, end: dt.datetime, days: int, step: dt.timedelta) -> list[Sample]:
        """Steps of the whole days (UTC) before the day of ``end``.

        Raises:
            GateError: it cannot be reached, or does not answer the question.
        """
        stop = end.astimezone(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        start = stop - dt.timedelta(days=days) + step
        p95 = self._range(P95_QUERY, start, stop, step)
        throughput = self._range(THROUGHPUT_QUERY, start, stop, step)
        return [
            Sample(time=_utc(time), p95_ms=p95.get(time, math.nan), per_second=value)
            for time, value in sorted(throughput.items())
        ]

    def _range(self, query: str, start: dt.datetime, stop: dt.datetime, step: dt.timedelta) -> dict[float, float]:
        seconds = int(step.total_seconds())
        text = query.replace("SELECTOR", self._selector).replace("STEP", f"{seconds}s")
        answer = self._get({"query": text, "start": start.timestamp(), "end": stop.timestamp(), "step": seconds})
        if len(answer.data.result) > 1:
            raise GateError(f"Prometheus gave {len(answer.data.result)} series where one was asked for: {text}")
        values = answer.data.result[0].values if answer.data.result else []
        return {time: float(value) for time, value in values}

    def _get(self, arguments: dict[str, Any]) -> _Answer:
        address = f"{self._url}/api/v1/query_range?{urllib.parse.urlencode(arguments)}"
        if not address.startswith(("http://", "https://")):
            raise GateError(f"{self._url!r}: give Prometheus' address as http://host:9090")
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as response:
                body = response.read()
        except urllib.error.HTTPError as error:
            body = error.read()  # a query that it refuses comes with a reason
        except OSError as error:
            raise GateError(f"Prometheus at {self._url}: {getattr(error, 'reason', error)}") from None
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.MsgspecError:
            raise GateError(f"{self._url} does not answer as Prometheus does: {body[:100]!r}") from None
        if answer.status != "success":
            raise GateError(f"Prometheus at {self._url}: {answer.error}")
        return answer


def read_file(path: Path) -> list[Sample]:
    """Samples from a CSV file; see the module.

    Raises:
        GateError: naming the row that cannot be read.
        OSError: no such file.
    """
    with path.open(newline="", encoding="utf-8") as file:
        return parse_rows(csv.DictReader(file))


def parse_rows(rows: Iterable[dict[str, Any]]) -> list[Sample]:
    """Samples from rows with the three names.

    Raises:
        GateError: naming the row that cannot be read.
    """
    samples = []
    for number, row in enumerate(rows, start=2):
        try:
            samples.append(
                Sample(
                    time=_time(row["time"]), p95_ms=float(row["p95_ms"] or "nan"), per_second=float(row["per_second"])
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise GateError(f"history, line {number}: {error!r}; the columns are time, p95_ms and per_second") from None
    return samples


def _time(text: str) -> dt.datetime:
    try:
        return _utc(float(text))
    except ValueError:
        time = dt.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)


def _utc(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def step_of(samples: list[Sample]) -> dt.timedelta:
    """The smallest distance between two samples: the length of a step.

    Raises:
        GateError: fewer than two.
    """
    times = sorted({sample.time for sample in samples})
    gaps = [after - before for before, after in itertools.pairwise(times)]
    if not gaps:
        raise GateError(f"history: {len(samples)} samples are too few to know how long a step is")
    return min(gaps)
