"""HAProxy's configuration for a fleet on one box, and the commands that change it while it runs. Text only.

All replicas are servers of one backend, so that "least connections" counts every connection that there is. A replica
that shall get no new clients has the weight 0: its connections stay. Spares are there, too, checked, with that weight;
the fleet gives one its full weight within milliseconds of another one's death, where HAProxy by itself waits for its
checks, and would use its own ``backup`` servers only when all others are down. A check that fails cuts no connection:
a replica that drains is not ready, and finishes what it has.
"""

from __future__ import annotations

from collections.abc import Sequence

from .layout import Member

BACKEND = "replicas"
_FULL = 100

_TEMPLATE = """\
# Made by `framelane fleet`, which changes the states of the servers through the socket below.
global
    stats socket {control} level admin
    hard-stop-after 5s

defaults
    mode http
    option http-keep-alive
    option redispatch 1
    option dontlognull
    retries 2
    retry-on conn-failure empty-response
    timeout connect 1s
    timeout client 60s
    timeout client-fin 10s
    timeout server 60s
    timeout http-request 10s
    timeout http-keep-alive 30s
    timeout tunnel 1h

frontend clients
    bind {address}{tls}
    option forwardfor
    http-request set-header X-Forwarded-Proto {scheme}
    acl of_fleet path /livez /readyz /v1/status /metrics
    acl of_fleet path_beg /v1/fleet/
    use_backend fleet if of_fleet
    default_backend {backend}

backend {backend}
    balance leastconn
    option httpchk GET /readyz
    http-check expect status 200
    default-server inter 500ms fastinter 100ms downinter 500ms fall 2 rise 1
{servers}

backend fleet
    server fleet 127.0.0.1:{door}
"""


def configuration(
    members: Sequence[Member],
    *,
    host: str,
    port: int,
    door: int,
    control: str,
    certificate: str = "",
) -> str:
    """The whole file.

    Args:
        members: the replicas; each begins with the weight 0.
        host, port: where clients come in.
        door: the port of the fleet's own endpoints, on this machine.
        control: address of the socket for commands, as HAProxy writes it.
        certificate: a PEM file with certificate and key; empty: no TLS.
    """
    servers = "\n".join(f"    server {member.name} 127.0.0.1:{member.port} check weight 0" for member in members)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _TEMPLATE.format(
        control=control,
        address=address,
        tls=f" ssl crt {certificate} alpn http/1.1" if certificate else "",
        scheme="https" if certificate else "http",
        backend=BACKEND,
        servers=servers,
        door=door,
    )


def open_server(member: str) -> str:
    """The commands that give a server new clients. It has proven itself: no check needs to say so first."""
    return f"set server {BACKEND}/{member} health up; set weight {BACKEND}/{member} {_FULL}"


def shut_server(member: str) -> str:
    """The command that gives a server no new clients."""
    return f"set weight {BACKEND}/{member} 0"
