"""Other servers that run the same pipeline on the same graphs, to be measured beside Framelane: a process per core.

``python -m framelane.loadtests.legacy.peers mosec --port 9000`` needs the peer's own packages; ``bench --peers`` makes
an environment for them. Each takes a JPEG by POST, decodes and runs it in a worker process, and answers msgpack, as its
documentation shows for images: mosec as the raw body, LitServe as a form's file.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from framelane.loadtests.legacy.bare import inline
from framelane.preprocess.packets import WEBSOCKET, encode_event


class Answering:
    """The pipeline, opened in the process that calls it first; a request's bytes in, a finished answer out."""

    def __init__(self) -> None:
        self._run = inline("face_mesh", {})

    def __call__(self, data: bytes) -> bytes:
        """The answer to one JPEG."""
        return encode_event(WEBSOCKET, "result", self._run(data)[0])


def serve_mosec(port: int, workers: int) -> None:
    """mosec: an HTTP front in Rust over worker processes."""
    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    import mosec  # type: ignore[import-not-found]

    class Worker(mosec.Worker):  # type: ignore[misc]
        def __init__(self) -> None:
            self._answer = Answering()

        def deserialize(self, data: bytes) -> bytes:
            return data

        def serialize(self, data: bytes) -> bytes:
            return data

        def forward(self, data: bytes) -> bytes:
            return self._answer(data)

    server = mosec.Server()
    server.append_worker(Worker, num=workers, start_method="fork")
    server.run()


def serve_litserve(port: int, workers: int) -> None:
    """LitServe: FastAPI over worker processes."""
    import litserve  # type: ignore[import-not-found]

    api = __getattr__("LitServeApi")()
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, fast_queue=True)
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False)


def __getattr__(name: str) -> Any:
    """``LitServeApi``, made when it is asked for: LitServe pickles it by name, and is seldom installed."""
    if name != "LitServeApi":
        raise AttributeError(name)
    return globals().setdefault(name, _litserve_api())


def _litserve_api() -> Any:
    import litserve
    from fastapi import Request, Response  # type: ignore[import-not-found]

    class LitServeApi(litserve.LitAPI):  # type: ignore[misc]
        def setup(self, device: str) -> None:
            self._answer = Answering()

        def decode_request(self, request: Any) -> bytes:
            return bytes(request["file"].file.read())

        def predict(self, data: bytes) -> bytes:
            return self._answer(data)

        def encode_response(self, output: bytes) -> Any:
            return Response(content=output, media_type="application/msgpack")

    LitServeApi.decode_request.__annotations__["request"] = Request  # the type itself: LitServe looks at it
    LitServeApi.__qualname__ = "LitServeApi"
    return LitServeApi


def serve_asyncio(port: int, workers: int) -> None:
    """One asyncio process: Starlette, a websocket per client, the pipeline in as many threads as there are cores."""
    arguments = ["-m", "framelane.loadtests.legacy.server", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--no-broadcast", "--no-inline", "--parallel", str(workers)]
    os.execv(sys.executable, [sys.executable, *arguments])


PEERS = {"asyncio": serve_asyncio, "mosec": serve_mosec, "litserve": serve_litserve}


@click.command(help=__doc__)
@click.argument("peer", type=click.Choice(list(PEERS)))
@click.option("--port", type=int, required=True)
@click.option("--workers", default=len(os.sched_getaffinity(0)), show_default="one per core")
def main(peer: str, port: int, workers: int) -> None:
    """Entry point of the process."""
    PEERS[peer](port, workers)


if __name__ == "__main__":
    main()
