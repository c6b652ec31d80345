"""Attempts against a small server that answers as it is told."""

import socket
import threading
import time

import msgspec
import pytest

from framelane.loadtests import rfc6455
from framelane.loadtests.attempts import Attempts


class Answering:
    """A websocket server of a few lines: each frame gets what ``answer(seq)`` says, as ``[name, fields]``."""

    def __init__(self, answer):
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._socket.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(1024)
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        seq = -1
        try:
            while True:
                opcode, _ = self._receive(connection)
                found = ["ready", {}] if seq < 0 else self._answer(seq - 1)
                seq = max(seq, 0) + 1 if opcode == rfc6455.BINARY else seq
                if found is not None:
                    self._send(connection, found)
        except OSError:
            connection.close()

    @staticmethod
    def _receive(connection):
        head = connection.recv(2, socket.MSG_WAITALL)
        if len(head) < 2:
            raise ConnectionError
        size = head[1] & 127
        if size >= 126:
            size = int.from_bytes(connection.recv(2 if size == 126 else 8, socket.MSG_WAITALL), "big")
        connection.recv(4 + size, socket.MSG_WAITALL)
        return head[0] & 15, size

    @staticmethod
    def _send(connection, found):
        data = msgspec.msgpack.encode(found)
        connection.sendall(bytes([0x82, 126]) + len(data).to_bytes(2, "big") + data)


@pytest.fixture
def answering():
    servers = []

    def start(answer):
        servers.append(Answering(answer))
        return Attempts("127.0.0.1", servers[-1].port, [b"jpeg"], timeout=1.0)

    yield start
    for server in servers:
        server.close()


def result(seq):
    return ["result", {"seq": seq, "timing": {"inference_ms": 7.5}}]


@pytest.mark.parametrize("clients", [1, 4])
def test_exactly_so_many_attempts_are_made_whatever_the_clients(answering, clients):
    course = answering(result).run(clients, 20)
    assert len(course.attempts) == 20
    assert all(attempt.ok and attempt.inference_ms == 7.5 for attempt in course.attempts)
    assert course.seconds > 0


def test_drop_is_a_failure_with_its_reason(answering):
    course = answering(lambda seq: ["dropped", {"seq": seq, "reason": "expired"}] if seq % 2 else result(seq)).run(
        1, 4, 0
    )
    assert [attempt.why for attempt in course.attempts] == ["", "expired", "", "expired"]


def test_silence_is_a_timeout_and_ends_the_client(answering):
    course = answering(lambda seq: None if seq == 2 else result(seq)).run(1, 10, 0)
    assert [attempt.why for attempt in course.attempts] == ["", "", "timeout"]


def test_answer_to_another_frame_is_not_taken_for_it(answering):
    def answer(seq):
        return result(99) if seq == 1 else result(seq)

    assert [attempt.why for attempt in answering(answer).run(1, 3, 0).attempts] == ["", "timeout"]


def test_server_that_refuses_is_told():
    def refuse(listening):
        with listening.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=refuse, args=(listening,))
        thread.start()
        with pytest.raises(rfc6455.HandshakeFailed, match="503"):
            Attempts("127.0.0.1", listening.getsockname()[1], [b"jpeg"]).run(1, 1)
        thread.join()


def test_progress_is_told(answering):
    told = []

    def slowly(seq):
        time.sleep(0.02)
        return result(seq)

    answering(slowly).run(1, 20, 0, told.append)
    assert told == sorted(told)
    assert told[-1] <= 20
