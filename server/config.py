"""Settings: declared once, with type, bounds, default and help; read from the command line, the environment, a file.

An option ``--max-clients`` is also the key ``max_clients`` of the TOML file and the variable ``FRAMELANE_MAX_CLIENTS``.
Secrets have no option, since a command line can be read by others on the machine.
Where several say something, the command line goes before the environment, and the environment before the file. A value
of None means "what fits this machine" (``plan.py`` decides, and says why). A wrong value is an error that names the
key, where it came from, and what is accepted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from framelane.models.errors import FramelaneError
from framelane.preprocess.logs import LEVELS_PATTERN

from .protocol import DEADLINE_MS, HELLO_TIMEOUT_S, MAX_FRAME_BYTES

ENVIRONMENT_PREFIX = "FRAMELANE_"
_SECRET = {"secret": True}  # a command line can be read by others: no option, and never shown


class ConfigError(FramelaneError):
    """A setting that is unknown or cannot be used."""

    code = "bad_config"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that ``framelane serve`` can be told."""

    host: Annotated[str, Meta(description="address to listen on; 0.0.0.0 is every interface")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 8000
    shared_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="a second port, on which other replicas of this machine may listen, too (SO_REUSEPORT); the "
            "first one is then open to this machine only; 0: none",
        ),
    ] = 0
    pipeline: Annotated[
        str, Meta(description="what to run: face_mesh, echo, reference, or module:Class for a pipeline of your own")
    ] = "face_mesh"
    options: Annotated[dict[str, Any], Meta(description="settings of the pipeline, as key=value")] = {}
    models: Annotated[
        list[str], Meta(description="folder of models of your own; searched before the built-in ones")
    ] = []
    device: Annotated[
        str,
        Meta(
            description="where models run: auto, cpu, cuda[:N,…], tensorrt[:N,…], or a simulated "
            "sim:MS[:batch=N][:item=MS][:group=NAME:tax=1,1.44,2.08][:serial]"
        ),
    ] = "auto"
    workers: Annotated[int, Meta(ge=1, le=256, description="processes that decode, pre- and postprocess")] | None = None
    spare_workers: Annotated[int, Meta(ge=0, le=64, description="ready workers that take over when one dies")] = 1
    worker_memory: Annotated[int, Meta(ge=256, description="most data memory of one worker, in MiB")] = 1024
    credits: Annotated[int, Meta(ge=1, le=64, description="frames that one worker may hold")] | None = None
    in_work: (
        Annotated[
            int,
            Meta(ge=1, description="frames that workers and slots may hold together; by default what keeps them busy"),
        ]
        | None
    ) = None
    active_slots: Annotated[int, Meta(ge=1, le=32, description="model processes that run at the same time")] | None = (
        None
    )
    standby_slots: Annotated[int, Meta(ge=0, le=31, description="warm model processes that take over at once")] = 0
    audit_slots: Annotated[int, Meta(ge=0, le=31, description="model processes reserved for long jobs (/v1/audit)")] = 0
    gpu_permits: Annotated[
        int,
        Meta(ge=0, le=64, description="most concurrent runs per device, over all replicas of this machine; 0: no cap"),
    ] = 0
    trace: Annotated[
        str, Meta(description="file for a timeline of all processes, for ui.perfetto.dev, written when the server ends")
    ] = ""
    gpu_density: Annotated[
        int, Meta(ge=1, le=60, description="replicas that share each card; its memory is divided among all their slots")
    ] = 1
    gpu_standbys: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="standby slots on each card, those of all replicas together; by default each replica is "
                "taken to have as many as this one",
            ),
        ]
        | None
    ) = None
    gpu_nhwc: Annotated[bool, Meta(description="on a card: convert convolutions to channels last")] = False
    gpu_conv_search: Annotated[
        Literal["heuristic", "exhaustive", "default"],
        Meta(description="on a card: how cuDNN chooses its algorithms; exhaustive measures each one at every start"),
    ] = "heuristic"
    gpu_graphs: Annotated[
        bool, Meta(description="on a card: record each batch size as a CUDA graph; checked when a slot starts")
    ] = False
    gpu_precision: Annotated[
        Literal["tf32", "fp32", "fp16"],
        Meta(
            description="on a card: tf32 multiplies with 10 bits of mantissa, fast, with a relative error near "
            "1e-3; fp32 is exact; fp16 takes model.fp16.onnx (framelane models check --fp16)"
        ),
    ] = "tf32"
    gpu_cache: Annotated[
        str, Meta(description="folder for TensorRT's engines, which take minutes to build; empty: they are not kept")
    ] = ""
    hang_limit: Annotated[
        float, Meta(ge=0.5, le=600, description="seconds without progress after which a process is put down")
    ] = 1.5
    max_clients: (
        Annotated[int, Meta(ge=1, description="clients that are served at once; by default what was measured")] | None
    ) = None
    token: Annotated[str, Meta(description="one word that every client must show", extra=_SECRET)] = ""
    token_secret: Annotated[
        str,
        Meta(
            description="what signed tokens are made with (HS256, 32 bytes or more): each client then needs a token of "
            "its own, see `framelane token`",
            extra=_SECRET,
        ),
    ] = ""
    token_keys: Annotated[
        str, Meta(description="file with the keys of signed tokens, a JWK Set: several, by kid; also public ones")
    ] = ""
    token_audience: Annotated[str, Meta(min_length=1, description="what signed tokens must name as aud")] = "framelane"
    allowed_origins: Annotated[
        str,
        Meta(
            description="web pages that may connect besides this server's own, as https://host[:port] with commas "
            "between; * is every page"
        ),
    ] = ""
    without_origin: Annotated[
        Literal["undecided", "allow", "refuse"],
        Meta(description="whether programs may connect, which send no Origin; undecided lets them in"),
    ] = "undecided"
    allowed_hosts: Annotated[
        str,
        Meta(description="names under which clients may ask this server, with commas between; by default any"),
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(description="addresses or networks, with commas between, whose X-Forwarded-For is believed"),
    ] = ""
    address_connections: Annotated[
        int, Meta(ge=0, description="connections of one address (IPv6: of one /64) at once; 0: no limit")
    ] = 0
    address_rate: Annotated[
        float, Meta(ge=0, description="new connections of one address per second, 5 s' worth at once; 0: no limit")
    ] = 0.0
    frame_limit: Annotated[float, Meta(ge=0, description="frames per second that one client may send; 0: no limit")] = (
        0.0
    )
    byte_limit: Annotated[
        float, Meta(ge=0, description="bytes of frames per second that one client may send; 0: no limit")
    ] = 0.0
    idle_limit: Annotated[
        float, Meta(ge=0, description="seconds after which a client with a place that sends nothing loses it; 0: never")
    ] = 0.0
    handshake_limit: Annotated[
        float, Meta(ge=0.1, le=600, description="seconds for a request's head, and for a client's first words")
    ] = HELLO_TIMEOUT_S
    tls_cert: Annotated[str, Meta(description="file with the certificate and its chain, PEM; serves https and wss")] = (
        ""
    )
    tls_key: Annotated[str, Meta(description="file with its private key, PEM; by default in the same file")] = ""
    insecure: Annotated[bool, Meta(description="say nothing about a public address that anybody may use")] = False
    client_fps: Annotated[
        float, Meta(gt=0, le=1000, description="frames per second that a client is promised when it gets a place")
    ] = 10.0
    waiting_room: Annotated[
        int, Meta(ge=0, le=1_000_000, description="clients that may wait for a place; the next are refused")
    ] = 1000
    grace: Annotated[
        float, Meta(ge=0, le=600, description="seconds in which a client whose connection was lost keeps its place")
    ] = 10.0
    fairness: Annotated[
        Literal["frames", "cost"],
        Meta(description="what clients get the same share of: frames, or seconds of workers and slots"),
    ] = "frames"
    queue_depth: Annotated[
        int, Meta(ge=1, le=1000, description='frames that may wait for one client with the policy "queue"')
    ] = 8
    stall_limit: Annotated[
        float, Meta(ge=0.1, le=600, description="seconds after which a client that reads nothing is cut")
    ] = 5.0
    outbox_bytes: Annotated[
        int, Meta(ge=2**16, description="memory that one client's unread results may take, in bytes")
    ] = 2**20
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000, description="a result older than this is not delivered")] = (
        DEADLINE_MS
    )
    max_frame_bytes: Annotated[
        int, Meta(ge=1024, le=64 * 2**20, description="largest encoded image that a client may send, in bytes")
    ] = MAX_FRAME_BYTES
    max_pixels: Annotated[int, Meta(ge=1, description="largest image that is decoded, in pixels")] = 16_000_000
    mailbox_bytes: Annotated[
        int, Meta(ge=2**20, description="memory that all clients' waiting frames may take together, in bytes")
    ] = 256 * 2**20
    drain_limit: Annotated[float, Meta(ge=0, le=600, description="seconds that SIGTERM leaves for admitted frames")] = (
        10.0
    )
    redis: Annotated[
        str,
        Meta(
            description="Redis or Valkey through which the replicas of a fleet tell each other operators' words and "
            "counts, never frames: redis://host:6379/0 (with a password, rather as a variable)"
        ),
    ] = ""
    fleet_name: Annotated[str, Meta(min_length=1, max_length=64, description="which fleet, on that Redis")] = "default"
    replica_name: Annotated[
        str, Meta(max_length=200, description="this replica's name in the fleet; by default host and process")
    ] = ""
    fleet_clients: (
        Annotated[
            int,
            Meta(ge=1, description="clients that all replicas together serve at once (needs redis); default: no cap"),
        ]
        | None
    ) = None
    drain_wait: Annotated[
        float,
        Meta(ge=0, le=600, description="seconds that SIGTERM waits for another replica that drains (needs redis)"),
    ] = 10.0
    audit_bytes: Annotated[
        int, Meta(ge=1024, le=64 * 2**30, description="largest clip that a long job (/v1/audit) may bring, in bytes")
    ] = 256 * 2**20
    audit_retention: Annotated[
        float, Meta(ge=1, le=86_400, description="seconds that the results of a long job are kept after its end")
    ] = 600.0
    admin_token: Annotated[str, Meta(description="what operators' verbs need", extra=_SECRET)] = ""
    record: Annotated[
        str,
        Meta(
            description="file that gets one line per client that leaves: when it sent and how many bytes, no pictures, "
            "no addresses; `framelane swarm --replay` reads it"
        ),
    ] = ""
    log_level: Annotated[
        str,
        Meta(
            pattern=LEVELS_PATTERN,
            description="least severe of the log lines that are written: DEBUG, INFO, WARNING or ERROR, and after it "
            "module by module: INFO,lanes=DEBUG",
        ),
    ] = "INFO"
    log_format: Annotated[
        Literal["auto", "json", "text"],
        Meta(description="of log lines: text for people, one JSON object per line; auto: text in a terminal"),
    ] = "auto"
    otel_endpoint: Annotated[
        str, Meta(description="OpenTelemetry collector (http://host:4318) that gets spans of some frames")
    ] = ""
    otel_ratio: Annotated[float, Meta(ge=0, le=1, description="share of the frames that spans are made of")] = 0.01

    @property
    def logs(self) -> str:
        """How every process shall log, as ``preprocess.logs.set_up_logs`` reads it."""
        return f"{self.log_level};{self.log_format}"


def is_secret(field: msgspec.structs.FieldInfo) -> bool:
    """Whether a setting's value must not be shown, nor stand on a command line."""
    return bool((getattr(getattr(field.type, "__metadata__", [None])[0], "extra", None) or {}).get("secret"))


SECRETS = frozenset(field.name for field in msgspec.structs.fields(Settings) if is_secret(field))
"""Settings whose value is shown to nobody."""


class Sources(msgspec.Struct, frozen=True):
    """Where the value of each setting came from: "command line", "FRAMELANE_…", a file's name or "default"."""

    of: dict[str, str]


def load_settings(
    command_line: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> tuple[Settings, Sources]:
    """Merge the three sources into checked settings.

    Args:
        command_line: only what was given there, by key.
        environment: all variables; those with the prefix count.
        file: a TOML file, or None.

    Raises:
        ConfigError: naming the key, the source and what is accepted.
    """
    layers = [
        (str(file), _read_file(file)),
        ("", _read_environment(environment)),
        ("command line", dict(command_line)),
    ]
    values: dict[str, Any] = {}
    sources = dict.fromkeys(Settings.__struct_fields__, "default")
    for source, layer in layers:
        for key, value in layer.items():
            origin = source or ENVIRONMENT_PREFIX + key.upper()
            _check(key, value, origin)
            values[key] = {**values.get(key, {}), **value} if key == "options" and isinstance(value, dict) else value
            sources[key] = origin
    return msgspec.convert(values, Settings, strict=False), Sources(sources)


def _check(key: str, value: Any, origin: str) -> None:
    """Convert one value alone, so that the error can name its source."""
    if key not in Settings.__struct_fields__:
        raise ConfigError(f"unknown setting {key!r} ({origin}); there are: {', '.join(Settings.__struct_fields__)}")
    try:
        msgspec.convert({key: value}, Settings, strict=False)
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at ")[0]
        shown = "…" if key in SECRETS else repr(value)
        raise ConfigError(f"{key} = {shown} ({origin}): {text}") from None


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        with file.open("rb") as opened:
            return {key.replace("-", "_"): value for key, value in tomllib.load(opened).items()}
    except OSError as error:
        raise ConfigError(f"configuration file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file} is no TOML: {error}") from None


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Variables with the prefix that name a setting; others (for example FRAMELANE_CONFIG) are for somebody else."""
    found: dict[str, Any] = {}
    for key in Settings.__struct_fields__:
        value = environment.get(ENVIRONMENT_PREFIX + key.upper())
        if value is not None:
            found[key] = parse_text(key, value)
    return found


def parse_text(key: str, value: str) -> Any:
    """A value given as text: ``options`` is ``key=value,…``, ``models`` are folders with ``:`` between."""
    if key == "options":
        return parse_options(value.split(",") if value else [])
    if key == "models":
        return [folder for folder in value.split(":") if folder]
    return value


def parse_options(pairs: list[str] | tuple[str, ...]) -> dict[str, str]:
    """``["key=value", …]`` as a dict.

    Raises:
        ConfigError: a part without "=".
    """
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"option {pair!r}: write it as key=value")
        options[key.strip()] = value.strip()
    return options
