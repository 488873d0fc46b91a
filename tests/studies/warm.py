"""Commands in forks of a process that has imported everything, so that a start takes milliseconds and not seconds.

python warm.py serve SOCKET; python -S warm.py SOCKET WORDS, which runs ``python -m toolkit WORDS`` there, or
``finetune.py WORDS`` where these begin with a flag. It writes to the caller's output, holds the caller's locks on it,
and ends with the caller, as a command of its own would.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence


def command(place: str, *words: str) -> tuple[str, ...]:
    """What runs these words in a fork of the process at a socket."""
    return (sys.executable, "-S", __file__, place, *words)


def call(place: str, words: Sequence[str]) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    request = [os.getcwd(), words]  # noqa: PTH109 (pathlib takes longer than all of this)
    socket.send_fds(connection, [json.dumps(request).encode()], [1])
    if not (code := connection.recv(1)):
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(code[0])


def serve(place: str) -> None:
    import accelerate  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401

    import toolkit.pipeline
    import toolkit.reporting.comparison_report
    import toolkit.studies.runner
    from toolkit.reporting import chart_files, render_html

    chart_files.image_of = lambda chart, kind: b""  # which is most of a report's time
    render_html.chart_library = lambda: ""
    toolkit.studies.runner.launch_command = lambda config: command(place, "--config", str(config))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    while True:
        connection = listening.accept()[0]
        if not os.fork():
            listening.close()
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    from toolkit.cli import finetune_main, main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, *_ = socket.recv_fds(connection, 1 << 16, 1)
    folder, words = json.loads(message)
    os.chdir(folder)
    os.dup2(files[0], 1)
    os.dup2(files[0], 2)
    os.close(files[0])
    threading.Thread(target=lambda: (connection.recv(1), os._exit(1)), daemon=True).start()
    try:
        (finetune_main if words[0].startswith("-") else main)(words)
    except SystemExit as stop:
        sys.stdout.flush()
        connection.send(bytes([int(stop.code or 0)]))
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else call(sys.argv[1], sys.argv[2:])
