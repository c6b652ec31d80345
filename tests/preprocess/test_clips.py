"""Taking clips apart: ZIPs, JPEGs in a row, videos, and what only looks like one."""

import io
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import cv2
import numpy as np
import pytest
import simplejpeg
from pictures import gradient

from framelane.models.errors import InvalidFrame
from framelane.preprocess.clip_reader import ClipFailed, ClipLimits, ClipReader
from framelane.preprocess.clips import BadClip, ClipConfig, Frames, end_of_jpeg, open_clip
from framelane.preprocess.memory import Memory
from framelane.preprocess.progress import PAGE_BYTES


def jpeg(number: int, **options: Any) -> bytes:
    image = np.full((48, 64, 3), number * 7 % 256, np.uint8)
    return simplejpeg.encode_jpeg(image, **options)


PICTURES = [jpeg(number) for number in range(8)]


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def video(frames: int, size: tuple[int, int] = (64, 48)) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        writer = cv2.VideoWriter(file.name, cv2.VideoWriter_fourcc(*"mp4v"), 30, size)
        for number in range(frames):
            writer.write(np.full((size[1], size[0], 3), number * 20 % 256, np.uint8))
        writer.release()
        return file.read()


@pytest.fixture
def opened() -> Iterator[Any]:
    files: list[IO[bytes]] = []

    def opened(data: bytes, **limits: int) -> Frames:
        file = tempfile.TemporaryFile()  # noqa: SIM115
        files.append(file)
        file.write(data)
        file.flush()
        bounds = {"frame_bytes": 1 << 20, "max_frames": 100, "max_total_bytes": 1 << 24, "max_pixels": 10**6, **limits}
        return open_clip(file, ClipConfig(clip=file.fileno(), cell=-1, memory_limit=0, **bounds))

    yield opened
    for file in files:
        file.close()


def all_frames(frames: Frames) -> list[bytes]:
    found, number = [], 0
    while (frame := frames.frame(number)) is not None:
        found.append(frame[0])
        number += 1
    return found


# -- ZIP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_gives_its_pictures_in_order_with_their_names(opened: Any, compression: int) -> None:
    names = {f"a/{number}.jpg": picture for number, picture in enumerate(PICTURES)}
    frames = opened(zipped(names, compression))
    assert (frames.format, frames.total) == ("zip", 8)
    assert [frames.frame(number) for number in range(9)] == [*((data, name) for name, data in names.items()), None]


def test_names_are_told_and_lead_nowhere(opened: Any) -> None:
    frames = opened(zipped({"../../etc/passwd": PICTURES[0], "/etc/shadow": PICTURES[1]}))
    assert [frames.frame(number) for number in range(2)] == [
        (PICTURES[0], "../../etc/passwd"),
        (PICTURES[1], "/etc/shadow"),
    ]


def test_folders_and_resource_forks_are_no_pictures(opened: Any) -> None:
    frames = opened(zipped({"a/": b"", "a/1.jpg": PICTURES[0], "__MACOSX/a/._1.jpg": b"fork"}))
    assert (frames.total, all_frames(frames)) == (1, [PICTURES[0]])


def test_zip_with_too_many_files_is_refused(opened: Any) -> None:
    with pytest.raises(BadClip, match="101 files; the limit is 100"):
        opened(zipped({f"{number}": b"x" for number in range(101)}))


def test_zip_that_claims_too_much_is_refused_before_a_byte_is_unpacked(opened: Any) -> None:
    with pytest.raises(BadClip, match="holds 4000000 bytes; the limit is 1000000"):
        opened(zipped({f"{number}": bytes(1_000_000) for number in range(4)}), max_total_bytes=10**6)


def test_one_large_picture_is_one_error(opened: Any) -> None:
    frames = opened(zipped({"bomb": bytes(2_000_000), "good": PICTURES[0]}))
    with pytest.raises(InvalidFrame, match="2000000 bytes; the limit is 1048576"):
        frames.frame(0)
    assert frames.frame(1) == (PICTURES[0], "good")


def test_picture_that_unpacks_to_more_than_it_claims_is_one_error(opened: Any) -> None:
    data = bytearray(zipped({"liar": bytes(3_000_000), "good": PICTURES[0]}))
    claimed = struct.pack("<I", 3_000_000)
    at = data.rindex(claimed)  # in the central directory
    data[at : at + 4] = struct.pack("<I", 1000)
    frames = opened(bytes(data))
    try:
        found = frames.frame(0)
    except InvalidFrame:
        found = None
    assert found is None or len(found[0]) <= 1000
    assert frames.frame(1) == (PICTURES[0], "good")


def test_damaged_and_encrypted_pictures_are_errors_of_their_own(opened: Any) -> None:
    data = bytearray(zipped({"0": PICTURES[0], "1": PICTURES[1], "2": PICTURES[2]}, zipfile.ZIP_STORED))
    data[60] ^= 0xFF
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    data[second + 8] |= 1  # encrypted, says its entry
    frames = opened(bytes(data))
    for number in (0, 1):
        with pytest.raises(InvalidFrame, match="cannot be unpacked"):
            frames.frame(number)
    assert frames.frame(2) == (PICTURES[2], "2")


@pytest.mark.parametrize("cut", [5, 40, 200])
def test_cut_zip_cannot_be_read(opened: Any, cut: int) -> None:
    with pytest.raises(BadClip, match="ZIP"):
        opened(zipped({"0": PICTURES[0]})[:-cut])


# -- MJPEG -----------------------------------------------------------------------------------------------------------


def multipart(pictures: list[bytes]) -> bytes:
    head = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
    return b"".join(head % len(picture) + picture + b"\r\n" for picture in pictures) + b"--frame--\r\n"


@pytest.mark.parametrize("join", [b"".join, b"\r\n".join, multipart])
def test_jpegs_in_a_row(opened: Any, join: Any) -> None:
    frames = opened(join(PICTURES))
    assert (frames.format, frames.total) == ("mjpeg", 8)
    assert all_frames(frames) == PICTURES


def test_thumbnail_inside_a_header_is_no_frame(opened: Any) -> None:
    thumbnail = jpeg(99)
    exif = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    picture = PICTURES[0][:2] + exif + PICTURES[0][2:]
    assert all_frames(opened(picture + PICTURES[1])) == [picture, PICTURES[1]]


def test_progressive_and_restarting_jpegs_end_where_they_end(opened: Any) -> None:
    options = ([cv2.IMWRITE_JPEG_PROGRESSIVE, 1], [cv2.IMWRITE_JPEG_RST_INTERVAL, 1], [cv2.IMWRITE_JPEG_QUALITY, 100])
    pictures = [cv2.imencode(".jpg", gradient(200, 100), option)[1].tobytes() for option in options]
    assert all_frames(opened(b"".join(pictures))) == pictures


def test_cut_jpeg_is_the_last_frame_as_it_is(opened: Any) -> None:
    assert all_frames(opened(PICTURES[0] + PICTURES[1][:200])) == [PICTURES[0], PICTURES[1][:200]]


def test_large_jpeg_is_one_error(opened: Any) -> None:
    frames = opened(b"".join(PICTURES), frame_bytes=len(PICTURES[0]) - 1)
    with pytest.raises(InvalidFrame, match="the limit is"):
        frames.frame(0)


def test_too_many_jpegs_are_refused(opened: Any) -> None:
    with pytest.raises(BadClip, match="more than 7 pictures"):
        opened(b"".join(PICTURES), max_frames=7)


def test_end_of_a_jpeg_is_found_in_any_bytes() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        data = b"\xff\xd8\xff" + random.bytes(int(random.integers(0, 60)))
        assert 2 <= end_of_jpeg(data, 0) <= len(data) + 2
    assert end_of_jpeg(b"\xff\xd8\xff" + b"\xff" * 100, 0) <= 103


# -- video -----------------------------------------------------------------------------------------------------------


def test_video_gives_its_frames_as_jpegs(opened: Any) -> None:
    frames = opened(video(6))
    assert (frames.format, frames.total) == ("video", 6)
    found = all_frames(frames)
    assert len(found) == 6
    for number, data in enumerate(found):
        assert abs(int(simplejpeg.decode_jpeg(data).mean()) - number * 20) < 12


def test_frames_of_a_video_can_be_skipped(opened: Any) -> None:
    frames = opened(video(9))
    for number in (0, 4, 8):
        data, _name = frames.frame(number)
        assert abs(int(simplejpeg.decode_jpeg(data).mean()) - number * 20) < 12
    assert frames.frame(12) is None


def test_video_with_too_many_pixels_or_frames_is_refused(opened: Any) -> None:
    with pytest.raises(BadClip, match="64 × 48 pixels"):
        opened(video(2), max_pixels=3000)
    with pytest.raises(BadClip, match="200 frames; the limit is 100"):
        opened(video(200))


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n" * 4,
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"hello" * 100,
        bytes(5000),
        b"GIF89a" + bytes(100),
    ],
)
def test_what_is_no_clip_is_refused_by_its_first_bytes(opened: Any, data: bytes) -> None:
    with pytest.raises(BadClip, match="neither a ZIP"):
        opened(data)


def test_playlist_that_poses_as_a_video_is_not_followed(opened: Any) -> None:
    with pytest.raises(BadClip, match="cannot be opened"):
        opened(b"\x00\x00\x00\x18ftypmp42" + b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n" * 10)


# -- the process -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pages() -> Iterator[Memory]:
    memory = Memory.create("pages", PAGE_BYTES)
    yield memory
    memory.close()


async def read(pages: Memory, data: bytes, **limits: Any) -> tuple[dict[str, Any], list[Any]]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        bounds = {"frame_bytes": 1 << 20, "max_pixels": 10**6, **limits}
        reader = ClipReader(file.fileno(), ClipLimits(**bounds), pages, 0)
        try:
            about = await reader.open()
            found, number = [], 0
            while (frame := await reader.frame(number)) is not None:
                found.append(frame)
                number += 1
            return about, found
        finally:
            await reader.close()


async def test_reader_gives_frames_names_and_errors(pages: Memory) -> None:
    about, found = await read(pages, zipped({"ä.jpg": PICTURES[0], "bomb": bytes(2_000_000), "b": PICTURES[1]}))
    assert about == {"format": "zip", "frames": 3}
    assert [(frame.data, frame.name) for frame in found] == [(PICTURES[0], "ä.jpg"), (b"", ""), (PICTURES[1], "b")]
    assert "limit is 1048576" in found[1].error


async def test_reader_says_why_a_clip_cannot_be_opened(pages: Memory) -> None:
    with pytest.raises(ClipFailed, match="neither a ZIP"):
        await read(pages, b"nothing at all")


async def test_reader_that_takes_too_long_is_given_up(pages: Memory) -> None:
    with pytest.raises(ClipFailed, match="longer than"):
        await read(pages, b"".join(PICTURES), patience_s=0.001)


async def test_bomb_of_a_directory_fills_the_reader_only(pages: Memory) -> None:
    """Entries cost 46 bytes each in the file, and half a kilobyte each in memory."""
    entry = b"PK\x01\x02" + bytes(42)
    count = 400_000
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, len(entry) * count, 0, 0)
    data = b"PK\x05\x06" + entry[4:] + entry * (count - 1)
    with pytest.raises(ClipFailed, match=r"ZIP|memory|files"):
        await read(pages, b"PK\x03\x04" + data[4:] + end, memory_limit=256 << 20)
