"""What the dashboard shows: its rows and panels, each with the question that it answers in PromQL.

A formula that is used twice, or is long, is a recording rule (``../prometheus/recording.yml``).
"""

from __future__ import annotations

from typing import NamedTuple

HERE = 'instance=~"$instance"'


class Panel(NamedTuple):
    """One chart or number.

    Attributes:
        title: what it shows.
        unit: Grafana's name of the unit.
        queries: PromQL by legend; ``HERE`` stands for the chosen replicas.
        why: shown behind the "i" of the panel.
        kind: "timeseries", or "stat" for one large number.
        width: of 24 columns.
        most: upper end of the axis.
        stacked: whether series add up to something.
        bad: from where a "stat" is red.
    """

    title: str
    unit: str
    queries: dict[str, str]
    why: str = ""
    kind: str = "timeseries"
    width: int = 8
    most: float | None = None
    stacked: bool = False
    bad: float | None = None


ROWS: dict[str, list[Panel]] = {
    "Now": [
        Panel("Clients", "none", {"": "sum(framelane_lanes{HERE})"}, kind="stat", width=3),
        Panel("Goodput", "suffix: fps", {"": "sum(instance:framelane_goodput:rate1m{HERE})"}, kind="stat", width=4),
        Panel(
            "Lost",
            "percentunit",
            {"": "max(instance:framelane_frames_lost:ratio_rate1m{HERE})"},
            "The worst replica. Frames that were owed an answer and got none.",
            kind="stat",
            width=4,
            bad=0.02,
        ),
        Panel(
            "p95",
            "s",
            {"": "max(instance:framelane_result_age_seconds:p95_rate1m{HERE})"},
            "The worst replica. From the receipt of a frame until its result is handed to the network.",
            kind="stat",
            width=4,
            bad=0.25,
        ),
        Panel(
            "Replicas that do not answer",
            "none",
            {"": 'sum(up{job="framelane", HERE} == bool 0)'},
            kind="stat",
            width=3,
            bad=1,
        ),
        Panel(
            "Alerts",
            "none",
            {"": 'count(ALERTS{alertname=~"Framelane.*", alertstate="firing"}) or vector(0)'},
            kind="stat",
            width=3,
            bad=1,
        ),
        Panel(
            "Device",
            "none",
            {"{{used}}": "count by (used) (framelane_device_info{HERE})"},
            "What models run on. A simulated device computes nothing, and says SIMULATED.",
            kind="stat",
            width=3,
        ),
    ],
    "Users: rate, errors, duration": [
        Panel(
            "Messages and results",
            "suffix: /s",
            {
                "{{instance}} received": "instance:framelane_messages:rate1m{HERE}",
                "{{instance}} delivered": "instance:framelane_goodput:rate1m{HERE}",
                "{{instance}} capacity": "framelane_capacity_fps{HERE}",
            },
            "No result later than its deadline is delivered, so delivered is goodput. Capacity is as measured.",
        ),
        Panel(
            "Frames dropped, by reason",
            "suffix: /s",
            {"{{reason}}": "sum by (reason) (instance_reason:framelane_frames_dropped:rate1m{HERE})"},
            stacked=True,
        ),
        Panel(
            "Age of results",
            "s",
            {
                "{{instance}} p50": "instance:framelane_result_age_seconds:p50_rate1m{HERE}",
                "{{instance}} p95": "instance:framelane_result_age_seconds:p95_rate1m{HERE}",
                "{{instance}} p99": "instance:framelane_result_age_seconds:p99_rate1m{HERE}",
            },
            "From the receipt of a frame until its result is handed to the network.",
        ),
        Panel(
            "Clients",
            "none",
            {
                "{{instance}} connected": "framelane_lanes{HERE}",
                "{{instance}} waiting": "framelane_lanes_waiting{HERE}",
            },
        ),
        Panel(
            "Connections refused and cut",
            "suffix: /s",
            {
                "refused: {{code}}": "sum by (code) (rate(framelane_connections_refused_total{HERE}[1m]))",
                "cut: {{reason}}": "sum by (reason) (rate(framelane_connections_cut_total{HERE}[1m]))",
            },
        ),
        Panel("Interval that clients are asked to keep", "s", {"{{instance}}": "framelane_pace_seconds{HERE}"}),
    ],
    "What limits: more compute, or a way to reach the compute": [
        Panel(
            "Limited by",
            "none",
            {"{{limit}}": "sum by (limit) (framelane_limited_by{HERE})"},
            "Replicas by their own diagnosis; each one's sentence is on its page /ops.",
            stacked=True,
        ),
        Panel(
            "Busy",
            "percentunit",
            {
                "{{instance}} slots": "instance:framelane_slots_busy:ratio_rate1m{HERE}",
                "{{instance}} workers": "instance:framelane_workers_busy:ratio_rate1m{HERE}",
                "{{instance}} gateway": "instance:framelane_gateway_busy:ratio_rate1m{HERE}",
            },
            "Slots idle while frames are lost: compute is there, and is not reached.",
            most=1,
        ),
        Panel(
            "Where the time of a frame goes",
            "s",
            {"{{stage}}": "avg by (stage) (instance_stage:framelane_stage_seconds:mean_rate1m{HERE})"},
            "Means; the stages add up to the age of a result.",
            stacked=True,
        ),
    ],
    "Resources: utilisation, saturation, errors": [
        Panel(
            "Cores in use",
            "none",
            {"{{kind}}": "sum by (kind) (rate(framelane_process_cpu_seconds_total{HERE}[1m]))"},
            stacked=True,
        ),
        Panel(
            "Work that waits for a core",
            "percentunit",
            {"{{instance}}": "instance:framelane_core_wait:ratio_rate1m{HERE}"},
            most=1,
        ),
        Panel(
            "Event loop late, p99",
            "s",
            {"{{instance}}": "instance:framelane_event_loop_lag_seconds:p99_rate1m{HERE}"},
        ),
        Panel(
            "Memory (PSS)",
            "bytes",
            {"{{kind}}": "sum by (kind) (framelane_process_pss_bytes{HERE})"},
            stacked=True,
        ),
        Panel(
            "Frames inside, and how many may be in work",
            "none",
            {
                "{{instance}} inside": "framelane_frames_inside{HERE}",
                "{{instance}} limit": "framelane_inflight_limit{HERE}",
            },
        ),
        Panel(
            "Credits of workers",
            "none",
            {"{{state}}": "sum by (state) (framelane_credits{HERE})"},
            stacked=True,
        ),
        Panel(
            "Slots by state",
            "none",
            {"{{state}}": "sum by (state) (framelane_slots{HERE})"},
            stacked=True,
        ),
        Panel(
            "Restarts, hangs, promotions in 5 minutes",
            "none",
            {
                "{{kind}} restarted": "sum by (kind) (increase(framelane_restarts_total{HERE}[5m]))",
                "{{kind}} hung": "sum by (kind) (increase(framelane_hangs_total{HERE}[5m]))",
                "promotions": "sum(increase(framelane_promotions_total{HERE}[5m]))",
            },
        ),
        Panel(
            "Items per run",
            "none",
            {"{{instance}}": "rate(framelane_batch_items_sum{HERE}[1m]) / rate(framelane_batch_items_count{HERE}[1m])"},
        ),
        Panel(
            "Network",
            "Bps",
            {
                "{{instance}} in": "rate(framelane_received_bytes_total{HERE}[1m])",
                "{{instance}} out": "rate(framelane_sent_bytes_total{HERE}[1m])",
            },
        ),
        Panel(
            "Memory of frames that wait",
            "bytes",
            {"{{instance}}": "framelane_mailbox_bytes{HERE}"},
        ),
        Panel("Long jobs", "none", {"{{state}}": "sum by (state) (framelane_audit_jobs{HERE})"}, stacked=True),
    ],
    "GPU, from dcgm-exporter with prometheus/dcgm-counters.csv": [
        Panel(
            "How full the GPU is (SM_ACTIVE)",
            "percentunit",
            {"{{instance}} GPU {{gpu}}": "DCGM_FI_PROF_SM_ACTIVE"},
            "The share of multiprocessors that work. Compare with the panel beside it before you buy anything.",
            most=1,
        ),
        Panel(
            "How often any kernel ran (the usual utilisation)",
            "percent",
            {"{{instance}} GPU {{gpu}}": "DCGM_FI_DEV_GPU_UTIL"},
            "100 % says that the GPU was never idle, not that it was full.",
            most=100,
        ),
        Panel(
            "GPU memory",
            "percentunit",
            {
                "{{instance}} GPU {{gpu}}": "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
            },
            most=1,
        ),
        Panel(
            "Memory interface",
            "percentunit",
            {"{{instance}} GPU {{gpu}}": "DCGM_FI_PROF_DRAM_ACTIVE"},
            "Busy here and idle in SM_ACTIVE: limited by memory, and a larger batch may help.",
            most=1,
        ),
        Panel("Power", "watt", {"{{instance}} GPU {{gpu}}": "DCGM_FI_DEV_POWER_USAGE"}),
        Panel("Temperature", "celsius", {"{{instance}} GPU {{gpu}}": "DCGM_FI_DEV_GPU_TEMP"}),
    ],
}
