"""A hub that takes connections and never answers: commands end in one line, by the hub library's own setting."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.refusals import leave
from toolkit import memory
from toolkit.cli import finetune_main, guarded, main
from toolkit.memory import is_hub_reachable
from toolkit.questions.models import open_model

COMMANDS: dict[str, tuple[Callable[[list[str]], None], list[str]]] = {
    "a model to train": (finetune_main, ["--model", "someone/bert", "--output-dir", "runs"]),
    "a dataset": (finetune_main, ["--dataset", "someone/texts", "--output-dir", "runs"]),
    "checkpoints": (main, ["drift", "someone/bert", "minilm"]),
    "a model to look into": (lambda names: sys.exit(guarded(lambda: open_model(*names))), ["someone/bert"]),
}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that says for how long an answer is known."""
    now = [0.0]
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: list[float]) -> Iterator[Callable[[int], None]]:
    """A function: have the hub's library ask a port of this machine, for a second, and keep what it gets here."""

    def ask(port: int) -> None:
        memory._answers.cache_clear()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 1)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    yield ask
    memory._answers.cache_clear()


@pytest.fixture
def silent(ask: Callable[[int], None]) -> Iterator[list[socket.socket]]:
    """The connections to a hub that takes them all and says nothing."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        ask(server.getsockname()[1])
        yield taken
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_hub_that_never_answers_is_asked_once_and_named_in_one_line(
    name: str,
    silent: list[socket.socket],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry, flags = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    assert leave(entry, flags) == 2
    said = capsys.readouterr().err.splitlines()
    assert time.monotonic() - started < 20, said
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert "the hub cannot be reached within the 1 s of HF_HUB_ETAG_TIMEOUT" in said[0]
    asked = [connection.recv(100) for connection in silent]
    assert sum(request.startswith(b"HEAD") for request in asked) == 1, asked
    assert not (tmp_path / "runs").exists()


def test_any_answer_is_one_and_it_is_asked_for_again_later(
    ask: Callable[[int], None], now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ask(server.server_address[1])
        assert is_hub_reachable()
        assert is_hub_reachable()
        assert len(asked) == 1
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not is_hub_reachable()
        monkeypatch.delenv("HF_HUB_OFFLINE")
        server.shutdown()
    now[0] = float(memory.KNOWN_SECONDS)
    assert not is_hub_reachable()
