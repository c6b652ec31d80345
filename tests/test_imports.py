"""Who may import whom, and what an import may do. The tables here are the rule; CONTRIBUTING.md explains them."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import ROOT, modules_on_disk

MODULES = modules_on_disk()

# A room of the project and the rooms it may import. A room covers its submodules unless they have a row of their own.
# Arrows point down: cli → app → doors → lanes, slots → preprocess → models. `errors`, `protocol` and `config` hold
# words that all of the server uses; `ops` is read by those who show or serve it, never by those it watches.
MODEL_SIDE = {"framelane.preprocess", "framelane.models"}
WORDS = {
    "framelane.server.errors",
    "framelane.server.protocol",
    "framelane.server.config",
    "framelane.server.transitions",
}
PUBLIC = {"framelane.server.protocol", "framelane.server.sdk"}
BELOW_DOORS = {"framelane.server.lanes", "framelane.server.slots"}
MAY_IMPORT = {
    "framelane.models": set(),
    "framelane.preprocess": {"framelane.models"},
    "framelane.server": set(),  # its __init__ alone
    "framelane.server.errors": {"framelane.models"},
    "framelane.server.transitions": {"framelane.models"},
    "framelane.server.protocol": {"framelane.server.errors"},
    "framelane.server.config": WORDS | MODEL_SIDE,
    "framelane.server.options": WORDS | MODEL_SIDE,
    "framelane.server.proof": WORDS | MODEL_SIDE,
    "framelane.server.plan": WORDS | MODEL_SIDE | {"framelane.server.ops", "framelane.server.slots"},
    "framelane.server.cautions": WORDS | MODEL_SIDE | {"framelane.server.plan", "framelane.server.slots"},
    "framelane.server.explain": WORDS
    | MODEL_SIDE
    | {"framelane.server.ops", "framelane.server.plan", "framelane.server.options", "framelane.server.cautions"},
    "framelane.server.signals": set(),
    "framelane.server.sockets": WORDS,
    "framelane.server.sdk": {"framelane.server.protocol", "framelane.server.errors"},
    "framelane.server.lanes": WORDS | MODEL_SIDE,
    "framelane.server.slots": WORDS | MODEL_SIDE,
    "framelane.server.ops": WORDS | MODEL_SIDE | BELOW_DOORS,
    "framelane.server.fleet": WORDS
    | MODEL_SIDE
    | BELOW_DOORS
    | {"framelane.server.doors", "framelane.server.ops", "framelane.server.plan", "framelane.server.options"}
    | {"framelane.server.signals"},
    "framelane.server.doors": WORDS | MODEL_SIDE | BELOW_DOORS | {"framelane.server.ops"},
    "framelane.server.app": WORDS
    | MODEL_SIDE
    | BELOW_DOORS
    | {"framelane.server.ops", "framelane.server.doors", "framelane.server.plan", "framelane.server.proof"}
    | {"framelane.server.cautions", "framelane.server.signals", "framelane.server.fleet"}
    | {"framelane.server.sockets", "framelane.server.wiring"},
    "framelane.server.wiring": WORDS | MODEL_SIDE | BELOW_DOORS | {"framelane.server.doors", "framelane.server.plan"},
    "framelane.server.cli": WORDS
    | MODEL_SIDE
    | BELOW_DOORS
    | {"framelane.server.ops", "framelane.server.doors", "framelane.server.app", "framelane.server.plan"}
    | {"framelane.server.options", "framelane.server.cautions"},
    "framelane.loadtests": PUBLIC | {"framelane.loadtests.plan"},
    "framelane.loadtests.plan": PUBLIC | MODEL_SIDE | {"framelane.loadtests"},  # what a card holds is what `serve` says
    # These measure the parts themselves: sessions, and the slot's thread for a card.
    "framelane.loadtests.gpu_loop": MODEL_SIDE | {"framelane.loadtests"},
    "framelane.loadtests.gpu_checks": MODEL_SIDE | {"framelane.loadtests", "framelane.server.slots"},
    "framelane.loadtests.gpu_check": MODEL_SIDE | {"framelane.loadtests", "framelane.loadtests.gpu_checks"},
    "framelane.loadtests.legacy": PUBLIC | MODEL_SIDE | {"framelane.loadtests"},
}

# Outside libraries that only these modules may name, even inside a function.
ONLY_IMPORTER = {
    "onnxruntime": {"framelane.models.runtime"},
}

# What must be absent from a process after it has imported its entry module.
NEVER_LOADED = {
    "framelane.server.app": {"cv2", "onnxruntime", "simplejpeg"},  # the gateway touches no pixels
    "framelane.server.cli": {"cv2", "onnxruntime"},  # `framelane --help` answers at once
    "framelane.server.protocol": {"cv2", "onnxruntime", "simplejpeg", "socketio", "uvicorn"},
    "framelane.server.sdk.client": {"cv2", "onnxruntime", "simplejpeg", "uvicorn"},
    "framelane.preprocess.pool": {"cv2", "onnxruntime", "simplejpeg"},
    "framelane.preprocess.worker": {"onnxruntime", "uvicorn"},
    **{name: {"cv2", "simplejpeg"} for name in MODULES if name.startswith("framelane.server.slots.")},
}

# These decide without I/O: `now` is an argument, and bytes come and go as values.
PURE = [
    "framelane.server.protocol",
    "framelane.server.lanes.mailboxes",
    "framelane.server.lanes.admission",
    "framelane.server.lanes.capacity",
    "framelane.server.lanes.gauge",
    "framelane.server.lanes.inflight",
    "framelane.server.lanes.order",
    "framelane.server.lanes.pace",
    "framelane.server.lanes.waiting",
    "framelane.server.slots.states",
    "framelane.server.slots.cards",
    "framelane.server.fleet.haproxy",
    "framelane.server.fleet.layout",
    "framelane.server.fleet.messages",
    "framelane.server.fleet.metrics",
    "framelane.server.fleet.peers",
    "framelane.server.fleet.pulse",
    "framelane.server.fleet.roster",
    "framelane.server.fleet.states",
    "framelane.server.cautions",
    "framelane.server.ops.diagnosis",
    "framelane.server.ops.doctor",
    "framelane.server.ops.pressure",
    "framelane.server.ops.sentences",
    "framelane.server.ops.window",
    "framelane.server.ops.lag",
    "framelane.loadtests.cost",
    "framelane.loadtests.gate",
    "framelane.loadtests.density",
    "framelane.loadtests.probe",
    "framelane.loadtests.plan",
    "framelane.loadtests.plan_simulation",
    "framelane.loadtests.sweep",
    "framelane.loadtests.swarm.audience",
    "framelane.loadtests.swarm.doors",
    "framelane.loadtests.swarm.findings",
    "framelane.loadtests.swarm.network",
    "framelane.loadtests.swarm.pages",
    "framelane.loadtests.swarm.shapes",
    "framelane.loadtests.charts",
]
IMPURE_LIBRARIES = {"asyncio", "multiprocessing", "os", "select", "signal", "socket", "subprocess", "threading", "time"}

# Importing these patches the standard library for greenlets, which is why nothing but the swarm may do it.
PATCHING_LIBRARIES = {"gevent", "locust"}


@dataclass(frozen=True)
class Import:
    importer: str
    target: str
    line: int
    at_import: bool  # runs when the module is imported, rather than inside a function or for type checkers only

    def __str__(self) -> str:
        return f"{MODULES[self.importer].relative_to(ROOT)}:{self.line} imports {self.target}"


def targets(node: ast.Import | ast.ImportFrom, importer: str) -> Iterator[str]:
    """The modules that an import statement names; `from package import module` is the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        is_package = MODULES[importer].name == "__init__.py"
        home = importer.split(".")
        home = home[: len(home) - node.level + is_package]
        base = ".".join([*home, base] if base else home)
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if inner in MODULES else base


def names_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


def walk_imports(node: ast.AST, importer: str, at_import: bool = True) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for target in targets(child, importer):
                yield Import(importer, target, child.lineno, at_import)
            continue
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(child, ast.If) and names_type_checking(child.test)
        yield from walk_imports(child, importer, at_import and not (later or typing_only))


def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(), filename=str(MODULES[name]))


def imports_of(name: str) -> list[Import]:
    return list(walk_imports(parsed(name), name))


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def room_of(module: str) -> str | None:
    """The row of MAY_IMPORT that covers a module; None if a new part of the server has no row yet."""
    rooms = [room for room in MAY_IMPORT if is_within(module, room)]
    room = max(rooms, key=len, default=None)
    return None if room == "framelane.server" != module else room


def patches_on_import(name: str) -> bool:
    return any(found.target.split(".")[0] in PATCHING_LIBRARIES for found in imports_of(name) if found.at_import)


@pytest.mark.parametrize("name", MODULES)
def test_module_lies_in_a_room_of_the_table(name):
    assert room_of(name), f"{name} is in no room: move it into one, or give it a row in MAY_IMPORT"


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_what_its_room_may(name):
    own = room_of(name)
    inside = [found for found in imports_of(name) if is_within(found.target, "framelane")]
    wrong = [str(found) for found in inside if room_of(found.target) not in {own, *MAY_IMPORT[own]}]
    assert not wrong, f"{own} may import {sorted(MAY_IMPORT[own])} only"


@pytest.mark.parametrize("name", MODULES)
def test_module_does_not_import_its_own_package_under_the_folder_name(name):
    assert not [str(i) for i in imports_of(name) if i.target.split(".")[0] in {"server", "preprocess", "models"}]


@pytest.mark.parametrize("library", ONLY_IMPORTER)
def test_library_has_only_its_known_importer(library):
    found = [i for name in MODULES for i in imports_of(name) if is_within(i.target, library)]
    assert not [str(i) for i in found if i.importer not in ONLY_IMPORTER[library]]


def test_no_module_imports_itself_through_others():
    inside = {
        name: {i.target for i in imports_of(name) if i.at_import and i.target in MODULES} - {name} for name in MODULES
    }
    path: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for target in sorted(inside[name]):
            visit(target)
        done.add(path.pop())

    for name in inside:
        visit(name)


@pytest.mark.parametrize("name", [name for name in PURE if name in MODULES])
def test_deciding_module_has_no_clock_and_no_io(name):
    assert not [str(i) for i in imports_of(name) if i.target.split(".")[0] in IMPURE_LIBRARIES]
    assert not [node.lineno for node in ast.walk(parsed(name)) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def in_fresh_python(script: str, *arguments: str) -> dict:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [name for name in NEVER_LOADED if name in MODULES])
def test_process_stays_free_of_libraries_it_must_not_load(name):
    loaded = in_fresh_python(
        "import importlib, json, sys; importlib.import_module(sys.argv[1]); print(json.dumps(sorted(sys.modules)))",
        name,
    )
    unwanted = NEVER_LOADED[name].intersection(loaded)
    assert not unwanted, f"importing {name} loads {sorted(unwanted)}"


# Outside libraries are imported first, so that what they do is not held against the module under test.
WATCHED_IMPORTS = """
import importlib, json, logging, os, signal, sys, threading, warnings

outside, modules = json.loads(sys.argv[1])

def state():
    root = logging.getLogger()
    return {
        "sys.argv": list(sys.argv),
        "sys.path": list(sys.path),
        "environment": dict(os.environ),
        "working directory": os.getcwd(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "open files": sorted(os.listdir("/proc/self/fd")),
        "children": open("/proc/self/task/%d/children" % os.getpid()).read(),
        "signal handlers": {int(s): repr(signal.getsignal(s)) for s in signal.valid_signals()},
        "logging": [root.level, [repr(handler) for handler in root.handlers]],
        "warning filters": [repr(rule) for rule in warnings.filters],
    }

for name in outside:
    try:
        importlib.import_module(name)
    except ImportError:
        pass

changed = {}
output, sys.stdout = sys.stdout, sys.stderr
for name in modules:
    before = state()
    importlib.import_module(name)
    after = state()
    if before != after:
        changed[name] = [key for key in before if before[key] != after[key]]
print(json.dumps(changed), file=output)
"""


def test_importing_any_module_changes_nothing():
    names = [name for name in MODULES if not name.endswith(".__main__") and not patches_on_import(name)]
    outside = {i.target for name in names for i in imports_of(name) if i.at_import and i.target not in MODULES}
    changed = in_fresh_python(WATCHED_IMPORTS, json.dumps([sorted(outside), names]))
    assert changed == {}


# Everything that the server says to a client goes through lanes/delivery.py: it refuses an empty or foreign target,
# where python-socketio takes one as "everybody". Below it only the doors' transports touch a connection: they get
# finished bytes for one connection. `emit`, rooms and broadcasts have no place in the product at all.
SPEAKS_TO_CLIENTS = {"emit", "send_packet", "_send_packet", "broadcast", "enter_room", "send_bytes", "send_text"}
SPEAKS_TO_CLIENTS |= {"send_json", "send"}
MAY_SPEAK = {
    "framelane.server.lanes.delivery": SPEAKS_TO_CLIENTS - {"emit", "broadcast", "enter_room"},
    "framelane.server.doors.socketio": {"send", "send_packet", "_send_packet"},  # Engine.IO's queue of one connection
    "framelane.server.doors.websocket": {"send", "send_bytes"},  # one plain websocket
    "framelane.server.doors.transport": {"send_text"},  # below both: one connection's bytes
}
# Client kits speak to servers; slots and workers speak to the gateway, over their own sockets.
GATEWAY_ROOMS = ("framelane.server.app", "framelane.server.doors", "framelane.server.lanes", "framelane.server.ops",
                 "framelane.server.fleet")  # fmt: skip


def emitters(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in SPEAKS_TO_CLIENTS:
            yield node.attr, node.lineno


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith(GATEWAY_ROOMS)])
def test_nothing_but_delivery_speaks_to_clients(name):
    allowed = MAY_SPEAK.get(name, set())
    spoken = [f"{MODULES[name].relative_to(ROOT)}:{line} .{verb}" for verb, line in emitters(parsed(name))]
    wrong = [place for place in spoken if place.rpartition(".")[2] not in allowed]
    assert not wrong, "hand it to lanes/delivery.py instead"


@pytest.mark.parametrize("call", ["sio.emit('result', data)", "await self.sio.send(data)", "say = sio.emit"])
def test_lint_sees_an_emit_in_any_form(call):
    assert list(emitters(ast.parse(call)))


def test_lint_knows_where_the_modules_are():
    assert {"framelane.server", "framelane.models", "framelane.preprocess", "framelane.loadtests"} <= set(MODULES)
    assert all(isinstance(path, Path) and path.exists() for path in MODULES.values())
