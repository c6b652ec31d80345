"""The process of one generator: ``python -m framelane.loadtests.overload.driver ORDERS FOLDER``.

It brings its clients in, writes FOLDER/ready, waits for FOLDER/go (the moment to start, seconds of ``time.monotonic``),
plays its orders, and leaves FOLDER/records. The harness starts it; nobody else needs to. Where it may, it goes before
other programs of the machine (``precedence.py``).
"""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import click
import msgspec

from framelane.loadtests.generator import FrameFile

from .crowd import Crowd, Orders
from .precedence import run_on_time
from .records import Records

READY, GO, RECORDS = "ready", "go", "records"


@click.command(help=__doc__)
@click.argument("orders_file", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
def main(orders_file: Path, folder: Path) -> None:
    """Entry point of the process."""
    run_on_time()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    orders = msgspec.json.decode(orders_file.read_bytes(), type=Orders, dec_hook=lambda kind, value: kind(value))
    records = Records()
    crowd = Crowd(orders, FrameFile.load(orders.frames), records)
    crowd.gather()
    (folder / READY).touch()
    go = folder / GO
    crowd.idle(go.exists)
    gc.freeze()
    gc.disable()
    crowd.play(float(go.read_text()))
    records.save(folder / "partial")
    (folder / "partial").rename(folder / RECORDS)
    crowd.close()


if __name__ == "__main__":
    main()
