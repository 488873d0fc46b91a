"""Commands in a process of their own, in which every unpickling and every connection to elsewhere is seen.

``python -m tests.watched`` reads a line of JSON, the words of a command (``finetune`` is finetune.py), and answers with
a line: exit code, output, errors, and what the hook saw.
"""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a command."""

    words: tuple[str, ...]
    code: Any
    out: str
    err: str
    seen: tuple[str, ...]
    """What the hook saw: nothing, where all is well."""


class Watched:
    """A process that carries out commands; ``env`` is its whole environment."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        command = [sys.executable, "-m", "tests.watched"]
        env = {"PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **env}
        pipe = subprocess.PIPE
        self._log = open(folder / "stderr", "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, env=env, cwd=folder, stdin=pipe, stdout=pipe, stderr=self._log, text=True
        )

    def run(self, *words: object) -> Done:
        """The words of a command, carried out."""
        assert self.process.stdin
        assert self.process.stdout
        line = json.dumps([str(word) for word in words])
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, Path(self._log.name).read_text()
        return Done(tuple(map(str, words)), *(tuple(x) if isinstance(x, list) else x for x in json.loads(answer)))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()
        self._log.close()


SEEN: list[str] = []


def hook(event: str, args: tuple[Any, ...]) -> None:
    """See what must not be."""
    if event == "pickle.find_class":
        SEEN.append(f"{event} {args[0]}.{args[1]}")
    elif event in ("socket.connect", "socket.getaddrinfo"):
        address = args[1] if event == "socket.connect" else args
        host = address[0] if isinstance(address, tuple) else "localhost"  # a path, of a socket of this machine
        if not str(host).startswith(LOOPBACK):
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

    torch.load = torch.serialization.load = noted(torch.load)
    from toolkit.cli import finetune_main, main

    for line in sys.stdin:
        words, texts = json.loads(line), (io.StringIO(), io.StringIO())
        SEEN.clear()
        code: Any = "returned"
        try:
            with redirect_stdout(texts[0]), redirect_stderr(texts[1]):
                finetune_main(words[1:]) if words[0] == "finetune" else main(words)
        except SystemExit as stop:
            code = stop.code
        answer = [code, texts[0].getvalue(), texts[1].getvalue(), SEEN]
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    serve()
