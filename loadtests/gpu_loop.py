"""A raw loop on a device, as a process of its own: batches of one model, one after another, with nothing around them.

``python -m framelane.loadtests.gpu_loop --device cuda:0 --model reference --batch 4 --tally FILE`` runs until SIGTERM.
Each run is one result of the tally. It is what ``gpu_check`` holds the server against, and how it fills a card.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from framelane.loadtests.tally import Tally
from framelane.models.devices import parse_device
from framelane.models.providers import Tuning
from framelane.models.registry import Registry
from framelane.models.session import OnnxSession


@click.command()
@click.option("--device", default="cpu")
@click.option("--model", default="reference")
@click.option("--batch", default=1)
@click.option("--memory", default=0, help="Most bytes of the arena; 0: no bound.")
@click.option("--tally", type=click.Path(path_type=Path), required=True)
def main(device: str, model: str, batch: int, memory: int, tally: Path) -> None:
    """Run until it is ended."""
    session = OnnxSession(Registry().get(model), parse_device(device), Tuning(memory=memory))
    items = session.spare_items(batch)
    session.run(items)
    counts = Tally(tally)
    counts.ready()
    while True:
        start = time.perf_counter()
        session.run(items)
        counts.result(time.perf_counter() - start)


if __name__ == "__main__":
    main()
