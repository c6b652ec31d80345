"""Several replicas' metrics as one text."""

from prometheus_client.parser import text_string_to_metric_families

from framelane.server.fleet.metrics import merge

TEXT = """\
# HELP framelane_lanes Clients.
# TYPE framelane_lanes gauge
framelane_lanes 3
# HELP framelane_frames_dropped_total Frames.
# TYPE framelane_frames_dropped_total counter
framelane_frames_dropped_total{reason="expired"} 4
"""


def test_each_sample_names_its_replica_and_a_family_is_told_once() -> None:
    text = merge({"r1": TEXT, "r2": TEXT.replace(" 3", " 5")}).decode()
    assert text.count("# TYPE framelane_lanes gauge") == 1
    samples = {
        (sample.name, sample.labels["replica"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["framelane_lanes", "r1"] == 3
    assert samples["framelane_lanes", "r2"] == 5
    assert samples["framelane_frames_dropped_total", "r1"] == 4
