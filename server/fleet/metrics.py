"""The metrics of several replicas as one text, each sample with the name of its replica. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class _Merged(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merge(texts: Mapping[str, str], own: Iterable[Metric] = ()) -> bytes:
    """The families of all replicas, with the label ``replica``, and after them the fleet's own.

    Args:
        texts: what each replica's /metrics said, by its name.
        own: further families.
    """
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.samples.append(sample._replace(labels={"replica": replica, **sample.labels}))
    return generate_latest(_Merged([*families.values(), *own]))
