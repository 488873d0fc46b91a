"""Commands in a process of their own, in which every unpickling and every connection to elsewhere is seen.

``python -m tests.watched`` reads a line of JSON, the words of a command (``finetune`` is finetune.py) and what to
change in the environment, and answers with a line: exit code, output, errors, and what the hook saw.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
LOOPBACK = ("127.0.0.1", "::1", "localhost", "0.0.0.0")
"""How the names of this machine end: datasets asks a server that it calls by the hub's name, with a word before it."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a command."""

    words: tuple[str, ...]
    code: Any
    out: str
    err: str
    seen: tuple[str, ...]
    """What the hook saw: nothing, where all is well."""


PASSED_OVER = ("hf_", "http_proxy", "https_proxy", "all_proxy", "transformers_", "datasets_")
"""How the names of settings begin that would lead elsewhere."""


class Watched:
    """A process that carries out commands in a folder, below which the hub's files are kept; ``more``: environment."""

    def __init__(self, folder: Path, **more: str) -> None:
        command = [sys.executable, "-m", "tests.watched"]
        env = {name: value for name, value in os.environ.items() if not name.lower().startswith(PASSED_OVER)}
        # The library counts downloads at an address of its own.
        env |= {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hub"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
        env |= {"OMP_NUM_THREADS": "1", **more}
        pipe = subprocess.PIPE
        self._log = open(folder / "stderr", "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, env=env, cwd=folder, stdin=pipe, stdout=pipe, stderr=self._log, text=True
        )

    def run(self, *words: object, **env: str) -> Done:
        """The words of a command, carried out; the hub is asked again whether it is there."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([[str(word) for word in words], env]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, Path(self._log.name).read_text()
        return Done(tuple(map(str, words)), *(tuple(x) if isinstance(x, list) else x for x in json.loads(answer)))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
        self._log.close()


SEEN: list[str] = []
TIMEOUT = "HF_HUB_ETAG_TIMEOUT"


def hook(event: str, args: tuple[Any, ...]) -> None:
    """See what must not be."""
    if event == "pickle.find_class":
        SEEN.append(f"{event} {args[0]}.{args[1]}")
    elif event in ("socket.connect", "socket.getaddrinfo"):
        address = args[1] if event == "socket.connect" else args
        host = address[0] if isinstance(address, tuple) else "localhost"  # a path, of a socket of this machine
        if not str(host).endswith(LOOPBACK):
            SEEN.append(f"{event} {host}")


def noted(load: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.load`` that is seen: what it does with ``weights_only`` raises no event."""

    def call(*args: Any, **options: Any) -> Any:
        SEEN.append("torch.load")
        return load(*args, **options)

    return call


def serve() -> None:
    """Carry out commands until there are no more."""
    out = sys.stdout
    sys.addaudithook(hook)
    import torch
    from huggingface_hub import constants

    torch.load = torch.serialization.load = noted(torch.load)
    from toolkit import memory
    from toolkit.cli import finetune_main, main

    memory.KNOWN_SECONDS = 10**6  # or a command in which a period ends asks twice
    for line in sys.stdin:
        (words, env), texts = json.loads(line), (io.StringIO(), io.StringIO())
        SEEN.clear()
        memory._ask.cache_clear()
        code: Any = "returned"
        # Which the library reads once, when it is imported.
        constants.HF_HUB_ETAG_TIMEOUT = float(env.get(TIMEOUT, os.environ.get(TIMEOUT, 10)))
        try:
            with redirect_stdout(texts[0]), redirect_stderr(texts[1]), patch.dict(os.environ, env):
                finetune_main(words[1:]) if words[0] == "finetune" else main(words)
        except SystemExit as stop:
            code = stop.code
        answer = [code, texts[0].getvalue(), texts[1].getvalue(), SEEN]
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    serve()
