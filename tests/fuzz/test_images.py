"""Pictures that are nearly right (`make prove`: a hundred thousand): invalid by name, or decoded in the right shape."""

import asyncio
import random
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from e2e.servers import Serve, serving
from fuzz.mutations import mutated, stream

from framelane.models.errors import InvalidFrame
from framelane.preprocess.decode import ImageDecoder
from framelane.preprocess.headers import Limits, read_header
from framelane.server.sdk.client import Client, Result, Unanswered

DECODER = ImageDecoder(Limits(max_pixels=1_000_000))


def seeds() -> list[bytes]:
    """Small pictures of every format, so that a change meets something that matters."""
    chance = np.random.default_rng(1)
    noise = chance.integers(0, 256, (24, 40, 3), np.uint8)
    smooth = cv2.resize(noise[:4, :4], (64, 48))
    found = []
    for image in (noise, smooth, smooth[:, :, 0]):
        for suffix, options in (
            (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 80]),
            (".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_RST_INTERVAL, 2]),
            (".png", []),
            (".webp", [cv2.IMWRITE_WEBP_QUALITY, 80]),
            (".webp", [cv2.IMWRITE_WEBP_QUALITY, 101]),
        ):
            found.append(cv2.imencode(suffix, image, options)[1].tobytes())
    return found


SEEDS = seeds()


def decode(data: bytes) -> bool:
    """Whether it is a picture; anything but that or InvalidFrame raises."""
    view = memoryview(data)
    try:
        width, height, _ = DECODER.size(view)
        image = DECODER.decode(view)
    except InvalidFrame:
        return False
    assert image.shape == (height, width, 3)
    assert image.dtype == np.uint8
    assert DECODER.decode(view, (8, 8)).shape[2] == 3 if data[:2] == b"\xff\xd8" else True
    return True


def test_seeds_are_pictures() -> None:
    assert all(decode(seed) for seed in SEEDS)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("count", [2000, pytest.param(100_000, id="long", marks=pytest.mark.prove)])
def test_every_picture_is_decoded_or_invalid_and_leaves_nothing_behind(count: int) -> None:
    process, readings, good = psutil.Process(), [], 0
    for part in range(5):
        good += sum(decode(data) for data in stream(part, SEEDS, count // 5))
        readings.append(process.memory_info().rss)
    assert 0 < good < count, "some changes do no harm, most do"
    assert readings[-1] - readings[1] < 16 * 2**20, readings


def test_header_of_any_bytes_is_read_or_invalid() -> None:
    for data in stream(9, [seed[:64] for seed in SEEDS], 20_000):
        try:
            header = read_header(memoryview(data))
        except InvalidFrame:
            continue
        assert header.width > 0
        assert header.height > 0


async def send_all(server: Serve, count: int) -> tuple[int, int]:
    """Results and frames that are invalid, of so many."""
    chance, outcomes = random.Random(1), [0, 0]

    def answered(answer: Result | Unanswered) -> None:
        assert isinstance(answer, Result) or answer.code in ("invalid", "superseded", "rate_limited"), answer
        outcomes[isinstance(answer, Unanswered) and answer.code == "invalid"] += 1

    async with Client(f"http://127.0.0.1:{server.port}", paced=False, on_answer=answered) as client:
        for _ in range(count):
            await client.room()
            client.send(mutated(chance, SEEDS))
        while client._session.unanswered:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return outcomes[0], outcomes[1]


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_no_worker_dies_of_them_and_none_grows(tmp_path: Path) -> None:
    with serving(tmp_path, "--device", "sim:0.1", "--workers", "1", "--deadline-ms", "20000") as server:
        asyncio.run(send_all(server, 3000))
        workers, before = server.active("workers"), server.pss()
        _, invalid = asyncio.run(send_all(server, 17_000))
        assert invalid > 5000
        assert server.active("workers") == workers
        assert server.status()["restarts"] == {"workers": 0, "slots": 0}
        assert server.pss() - before < 20 * 2**20
        assert server.quiet_books().dropped["failed"] == 0
