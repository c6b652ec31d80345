"""Peers: frames by POST, in a closed loop."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from framelane.loadtests.bench import SECTIONS, _sections
from framelane.loadtests.bench_peers import Peers, _python
from framelane.loadtests.generator import FrameFile, NotServed
from framelane.loadtests.posts import Posts
from framelane.loadtests.tally import Counts, Tally

CLIP = FrameFile(fps=30.0, frames=[b"a" * 300, b"b" * 70_000])
LIMIT = 4


class Peer(ThreadingHTTPServer):
    """Answers four requests with the given statuses, then closes the connection."""

    daemon_threads = True

    def __init__(self, statuses):
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = iter(statuses)
        self.got = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], body))
        self.send_response(next(self.server.statuses))
        self.send_header("Content-Length", "5616")
        self.end_headers()
        self.wfile.write(bytes(5616))
        self.close_connection = len(self.server.got) == LIMIT

    def log_message(self, *arguments):
        pass


def run(folder, statuses=(200,) * LIMIT, form=False):
    tally = Tally.create(folder / "tally")
    with Peer(statuses) as peer:
        thread = threading.Thread(target=peer.serve_forever)
        thread.start()
        with contextlib.closing(Posts(CLIP, tally, "/predict", form)) as posts:
            posts.connect("127.0.0.1", peer.server_port, 1)
            with pytest.raises((NotServed, OSError)):
                posts.run()
        peer.shutdown()
        thread.join()
    return peer.got, tally.counts()


def test_each_answer_is_followed_by_the_next_frame(tmp_path):
    got, counts = run(tmp_path)
    assert got == [("/predict", "image/jpeg", CLIP.frames[number % 2]) for number in range(LIMIT)]
    assert counts == Counts(results=LIMIT, dropped=0, errors=0)


def test_other_status_is_an_error_and_the_client_goes_on(tmp_path):
    _, counts = run(tmp_path, statuses=(200, 503, 200, 200))
    assert counts == Counts(results=3, dropped=0, errors=1)


def test_form_carries_the_frame_as_its_file(tmp_path):
    got, _ = run(tmp_path, form=True)
    _, kind, body = got[0]
    assert kind.startswith("multipart/form-data; boundary=")
    boundary = kind.partition("=")[2].encode()
    head, _, rest = body.partition(b"\r\n\r\n")
    assert b'name="file"' in head
    assert rest == CLIP.frames[0] + b"\r\n--" + boundary + b"--\r\n"


def test_peer_without_packages_runs_in_this_environment(tmp_path):
    assert _python(tmp_path, "asyncio")
    assert not list(tmp_path.iterdir())


def test_peers_alone_are_the_only_section(tmp_path):
    assert [section.name for section in _sections((), ("asyncio",), tmp_path)] == ["peers"]
    assert [section.name for section in _sections((), (), tmp_path)] == list(SECTIONS)
    assert [figure.row()[-1] for figure in Peers(["mosec"], tmp_path).figures()].count("not measured") == 7
