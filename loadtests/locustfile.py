"""The swarm for plain Locust: ``locust -f loadtests/locustfile.py --host http://localhost:8000``.

Everything that Locust can do works: its web page, ``--processes``, ``--headless``, user classes by name
(``WebSocketUser SocketIOUser``). Further options are in the group "Framelane" of ``--help``. ``framelane swarm`` runs
this file, and makes a report of it.
"""

from __future__ import annotations

from typing import Any

from locust import events

from framelane.loadtests.swarm.plugin import add_arguments, set_up
from framelane.loadtests.swarm.stock import StockSocketIOUser
from framelane.loadtests.swarm.users import SocketIOUser, WebSocketUser

__all__ = ["SocketIOUser", "StockSocketIOUser", "WebSocketUser"]


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _arguments(parser: Any) -> None:
    add_arguments(parser)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _init(environment: Any, **_: Any) -> None:
    set_up(environment)
