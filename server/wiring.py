"""What each part of a replica is told: settings and plan in each part's own words. Nothing is constructed here.

A setting gets to where it works through exactly one of these functions.
"""

from __future__ import annotations

import os
from typing import Any

import uvicorn

from framelane.models.registry import ModelSpec
from framelane.preprocess.clip_reader import ClipLimits
from framelane.preprocess.headers import Limits as ImageLimits
from framelane.preprocess.memory import ModelCells
from framelane.preprocess.pool import PoolConfig

from .config import Settings
from .doors.bounded_http import BoundedHttpProtocol
from .doors.entrance import names
from .doors.transport import GatewayProtocol
from .lanes.limits import Limits
from .plan import Plan
from .protocol import MAX_RESULT_BYTES, max_message_bytes
from .slots.auditor import AuditorConfig
from .slots.cards import make_tuning
from .slots.supervisor import SlotsConfig

_PACKET_MARGIN = 4096
_WORKER_PATIENCE = 2.0  # a worker may decode a huge picture in one turn; a slot's turn is one run
_MOST_PARALLEL = 4


def slots_config(
    settings: Settings, plan: Plan, models: list[ModelSpec], cells: list[ModelCells], trace: str
) -> SlotsConfig:
    """For the slots and their supervisor; ``trace`` is the folder for the parts of a timeline, if one is wanted."""
    return SlotsConfig(
        active=plan.active_slots,
        standby=plan.standby_slots,
        audit=plan.audit_slots,
        hang_s=settings.hang_limit,
        permits=settings.gpu_permits,
        device=plan.device,
        tuning=make_tuning(settings, plan.device, plan.active_slots, plan.gpu, len(models)),
        trace=trace,
        models=models,
        cells=cells,
        log_level=settings.logs,
    )


def pool_config(settings: Settings, plan: Plan, cells: list[ModelCells], trace: str) -> PoolConfig:
    """For the workers; ``trace`` as for ``slots_config``."""
    return PoolConfig(
        workers=plan.workers,
        credits=plan.credits,
        pipeline=settings.pipeline,
        options=settings.options,
        models=cells,
        limits=ImageLimits(max_bytes=settings.max_frame_bytes, max_pixels=settings.max_pixels),
        frame_bytes=settings.max_frame_bytes,
        packet_bytes=MAX_RESULT_BYTES + _PACKET_MARGIN,
        first_page=plan.slots,
        spares=plan.spare_workers,
        cores=max(1, int(plan.cores)),
        hang_s=_WORKER_PATIENCE * settings.hang_limit,
        memory_limit=settings.worker_memory << 20,
        audit=plan.can_audit,
        search_path=os.getcwd(),
        trace=trace,
        log_level=settings.logs,
    )


def auditor_config(settings: Settings, plan: Plan, stateful: bool) -> AuditorConfig:
    """For long jobs."""
    clip = ClipLimits(
        frame_bytes=settings.max_frame_bytes,
        max_pixels=settings.max_pixels,
        memory_limit=settings.worker_memory << 20,
        log_level=settings.logs,
    )
    return AuditorConfig(
        clip=clip,
        clip_bytes=settings.audit_bytes,
        page=plan.processes + 1,
        stateful=stateful,
        retention_s=settings.audit_retention,
    )


def lane_limits(settings: Settings, plan: Plan, stateful: bool) -> Limits:
    """For the lanes, and all that decides about clients."""
    return Limits(
        pipeline=settings.pipeline,
        stateful=stateful,
        max_frame_bytes=settings.max_frame_bytes,
        deadline_ms=settings.deadline_ms,
        mailbox_bytes=settings.mailbox_bytes,
        in_work=settings.in_work,
        max_clients=settings.max_clients,
        client_fps=settings.client_fps,
        waiting_room=settings.waiting_room,
        grace_s=settings.grace,
        allowed_origins=names(settings.allowed_origins),
        without_origin=settings.without_origin != "refuse",
        allowed_hosts=tuple(name.lower() for name in names(settings.allowed_hosts)),
        frames_per_s=settings.frame_limit,
        bytes_per_s=settings.byte_limit,
        idle_s=settings.idle_limit,
        hello_timeout_s=settings.handshake_limit,
        fairness=settings.fairness,
        queue_depth=settings.queue_depth,
        parallel=min(_MOST_PARALLEL, plan.workers),
        stall_s=settings.stall_limit,
        outbox_bytes=settings.outbox_bytes,
    )


def uvicorn_config(settings: Settings, app: Any, tls: dict[str, Any]) -> uvicorn.Config:
    """For uvicorn; see ``doors/transport.py`` for what is ours of it."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedHttpProtocol,
        ws=GatewayProtocol,
        ws_max_size=max_message_bytes(settings.max_frame_bytes),
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
        server_header=False,
        proxy_headers=False,  # `Doors` believes the trusted ones
        **tls,
    )
