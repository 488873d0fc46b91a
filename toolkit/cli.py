"""The console script ``embedding-drift`` (``python -m toolkit``) and finetune.py: flags, one-line errors, exit codes.

A mistake of the user's is one line on stderr and exit code 2; EMBEDDING_DRIFT_DEBUG=1 shows the traceback instead.
Imports are late, so that ``--help`` answers at once.
"""

import contextlib
import errno
import io
import itertools
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from toolkit.commands import COMMANDS
from toolkit.config import KEEP_THREADS, DataConfig, ModelConfig, OutputConfig, RunConfig, TrainingConfig, check_regime
from toolkit.families import REGIMES
from toolkit.memory import as_command, collecting_nothing, keep_freed_memory
from toolkit.naming import lookup, meant_by, mistyped, visible
from toolkit.progress import show

USER_ERROR = 2
INTERRUPTED = 130
DESCRIPTION = "Fine-tune BERT under one regime; its embedding parameters are kept per epoch."
"""At most 80 characters: tyro does not wrap it."""
FINETUNE = "finetune"
"""The command that is finetune.py where only the package is installed."""
COMMANDS_DESCRIPTION = "Analyse runs and checkpoints. COMMAND --help: its flags. Exit code 2: bad input."
BROKEN_PIPE = 141
"""As a shell reports a process that SIGPIPE ended: what was asked for may not have been done."""

SECONDS_APART = 5
"""What a process other than the first waits with its error: where the first meets the same, it says so and exits, and
the launcher ends the others meanwhile. What one process alone meets, a file that its machine lacks, is said by it."""

LOG_COLUMNS = "160"
"""Width of what is printed where no stream is a terminal, in a log for one."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Fine-tune BERT under one regime; its embedding parameters are kept per epoch."""

    # In the order of the help: the flags of each part stand together, and none has a prefix.

    config: Path | None = None
    """Take all settings from the config.json of another run (the file or its run directory); other flags change them.
    """
    data: tyro.conf.OmitArgPrefixes[DataConfig]
    model: tyro.conf.OmitArgPrefixes[ModelConfig]
    training: tyro.conf.OmitArgPrefixes[TrainingConfig]
    output: tyro.conf.OmitArgPrefixes[OutputConfig]

    @classmethod
    def of(cls, config: RunConfig) -> "Flags":
        """The flags of a config."""
        part_types = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig, "output": OutputConfig}
        return cls(
            **{name: part_type(**_values_of_fields(config, part_type)) for name, part_type in part_types.items()}
        )

    def to_config(self) -> RunConfig:
        """The config of all flags; ValueError for one that cannot work."""
        parts = (self.data, self.model, self.training, self.output)
        return RunConfig(
            **{name: value for part in parts for name, value in _values_of_fields(part, type(part)).items()}
        )


def _values_of_fields(config: Any, kind: Any) -> dict[str, Any]:
    """The values that a config has for the fields of a part of it."""
    return {field.name: getattr(config, field.name) for field in fields(kind)}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``embedding-drift`` and ``python -m toolkit``."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] != [FINETUNE]:  # which does so itself, where it runs on a CPU
        keep_freed_memory()
    name = Path(sys.argv[0]).name
    prog = "python -m toolkit" if name == "__main__.py" else name
    with as_command():
        sys.exit(guarded(lambda: _command(args, prog)))


def _command(args: list[str], prog: str) -> int:
    """Carry out a command, parsed by itself: tyro's messages are then about its flags alone."""
    commands = {FINETUNE: Flags, **COMMANDS}
    if args[:1] == [FINETUNE]:
        return _finetune(parse_config(args[1:], f"{prog} {FINETUNE}"))
    if args and not args[0].startswith("-"):
        name, *flags = args
        command = parse(lookup(commands, name, "command"), flags, prog=f"{prog} {name}")
    else:  # --help of all commands, or a mistake
        any_command: Any = Union[  # noqa: UP007
            tuple(Annotated[command_class, tyro.conf.subcommand(name)] for name, command_class in commands.items())
        ]
        command = parse(any_command, args, prog=prog, description=COMMANDS_DESCRIPTION)
    status: int = command.run()
    return status


def finetune_main(argv: Sequence[str] | None = None) -> None:
    """Entry point of finetune.py."""
    args = list(sys.argv[1:] if argv is None else argv)
    if KEEP_THREADS in os.environ:  # started by a study, below a launcher that does not end its program
        from toolkit.studies.executors import end_with_parent

        end_with_parent()
    with as_command():
        sys.exit(guarded(lambda: _finetune(parse_config(args))))


def _finetune(config: RunConfig) -> int:
    """Train the config of finetune.py's flags; exit code 0."""
    check_regime(config)
    with collecting_nothing():
        from toolkit.data.tasks import check_sources

        check_sources(config)  # before what takes seconds: a mistake of name or path is told at once
        from accelerate import PartialState

        from toolkit.pipeline import finetune
        from toolkit.reporting import run_screen

    finetune(config, screen=run_screen)
    state = PartialState()
    state.destroy_process_group()
    if state.num_processes > 1:
        # Two of 27 launches on a busy machine aborted after their last step ("terminate called"): probably a thread of
        # torch's that asked for Python while it was being taken down. All is written.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def parse_config(args: list[str], prog: str = "finetune.py") -> RunConfig:
    """Flags to a RunConfig; ``--config FILE`` gives the defaults that other flags change."""
    args, path = _take_config(args)
    path = path / "config.json" if path is not None and path.is_dir() else path
    if path is not None and not path.is_file():
        raise ValueError(f"--config: no file at {path}{meant_by(path)}")
    default = RunConfig() if path is None else RunConfig.from_json(path.read_bytes(), path)
    default = replace(default, overwrite=False)  # repeating a run must not destroy it unasked
    if default.train_file or default.dataset:
        default = replace(default, task=RunConfig().task)  # the name follows from the data, which a flag may change
    for flag in ("--test-file", "--ood-file"):
        args = _merge_repeated(args, flag)
    description = f"{DESCRIPTION}\n\nNamed regimes for --freeze: {', '.join(REGIMES)}."
    flags: Flags = parse(Flags, args, prog=prog, default=Flags.of(default), description=description)
    return flags.to_config()


def _take_config(args: list[str]) -> tuple[list[str], Path | None]:
    """Take ``--config FILE`` (or ``--config=FILE``) out of the arguments."""
    rest: list[str] = []
    path = None
    arguments = iter(args)
    for argument in arguments:
        flag, separator, value = argument.partition("=")
        if flag != "--config":
            rest.append(argument)
            continue
        value = value if separator else next(arguments, "")
        if not value:
            raise ValueError("--config takes the path of a config.json")
        path = Path(value)
    return rest, path


def _merge_repeated(args: list[str], flag: str) -> list[str]:
    """Let ``flag A flag B`` mean ``flag A B``: the parser would silently keep the last one only."""
    values: list[str] = []
    rest: list[str] = []
    is_inside = False
    for argument in args:
        if argument.startswith("--"):
            is_inside = argument == flag or argument.startswith(flag + "=")
            if is_inside:
                values += [argument.removeprefix(flag + "=")] if argument != flag else []
                continue
        (values if is_inside else rest).append(argument)
    return [*rest, flag, *values] if values else rest


def parse(kind: Any, args: list[str], *, prog: str, **options: Any) -> Any:
    """Parse flags; ValueError, in one line, for an unknown one or any other mistake that tyro finds."""
    _refuse_empty(args)
    flags = Counter(word.partition("=")[0].replace("_", "-") for word in args if word.startswith("--"))
    for flag in (flag for flag, count in flags.items() if count > 1 and _reports_errors()):
        warnings.warn(f"{flag} is given {flags[flag]} times, and the last one counts", stacklevel=2)
    error_output = io.StringIO()
    try:
        with contextlib.redirect_stderr(error_output):
            return tyro.cli(kind, args=args, prog=prog, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        _refuse_unknown(kind, args, options)
    raise ValueError(f"{_in_one_line(error_output.getvalue())}; {prog} --help has all flags")


def _in_one_line(box: str) -> str:
    """The message of an error of tyro's, in one line: the first part of the box it draws, between title and rule."""

    def is_rule(line: str) -> bool:
        return bool(re.match("[─-]{3}|╰", line))

    lines = itertools.dropwhile(is_rule, [line.strip("│ ") for line in box.splitlines()][1:])
    message_lines = itertools.takewhile(lambda line: not is_rule(line), lines)
    message = " ".join(" ".join(message_lines).split()).removeprefix("Error parsing ").replace(" (required)", "")
    type_mismatch = r"no type matching (?:\{None\}\|)?(.+?) could be instantiated from \[(['\"])(.*?)\2\].*"
    message = re.sub(type_mismatch, r"'\3' is not \1", message)
    return re.sub(r"invalid literal for int\(\) with base 10: (['\"].*['\"])", r"\1 is not INT", message).rstrip(".")


def _refuse_unknown(kind: Any, args: list[str], options: dict[str, Any]) -> None:
    """ValueError for a flag that is not among those of the command's --help.

    tyro's own error would mislead: it takes the word after an unknown flag for the flag's value and, where that word
    was the positional argument, says that this is missing.
    """
    help_text = io.StringIO()
    with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], prog="x", **options)
    flags = tuple(dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][\w-]*", help_text.getvalue())))
    for word in itertools.takewhile(lambda candidate: candidate != "--", args):  # behind it nothing is a flag
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag.replace("_", "-") not in flags:
            raise ValueError(mistyped(flag, "flag", flags))  # --help has all of them


def _reports_errors() -> bool:
    """Whether this process reports an error: of several, which all meet the same one, the first alone does."""
    return os.environ.get("RANK", "0") == "0"


NO_MEMORY = re.compile("out of memory|allocate memory|start new thread|failed to map segment", re.IGNORECASE)
"""What torch's allocators, Python's threads and the loader of libraries say, with a RuntimeError or an ImportError."""
FOLDERS = ("--out", "--output-dir")


def _refuse_empty(args: list[str]) -> None:
    """ValueError for a folder without a name, such as a variable of the shell that is not set: it would mean ``.``."""
    for word, after in itertools.zip_longest(args, args[1:]):
        flag, separator, value = word.replace("_", "-").partition("=")
        if flag in FOLDERS and (value == "" if separator else after == ""):
            raise ValueError(f"{flag} must be a name or path, or left out; got ''")


def guarded(function: Callable[[], int | None]) -> int:
    """Run an entry point, also that of a script; a user's mistake or a full disk becomes one line on stderr and exit
    code 2, and None, what a function returns that says nothing, exit code 0."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # of ASCII alone: a letter that it lacks costs no number
    with _wide_logs(), _plain_warnings():
        return (function() if os.environ.get("EMBEDDING_DRIFT_DEBUG") else _guarded(function)) or 0


@contextlib.contextmanager
def _wide_logs() -> Iterator[None]:
    """Room for whole tables where nothing is a terminal: rich would take 80 columns for granted, and cut them."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    is_log = "COLUMNS" not in os.environ and not any(stream is not None and stream.isatty() for stream in streams)
    if is_log:
        os.environ["COLUMNS"] = LOG_COLUMNS
    try:
        yield
    finally:
        if is_log:
            os.environ.pop("COLUMNS", None)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Within this block a warning is one line, without its place in the code, invisible characters as U+XXXX."""
    former_format = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {visible(' '.join(str(message).split()))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = former_format


def _guarded(function: Callable[[], int | None]) -> int | None:
    """The exit code of an entry point; an error that a user can do something about is one line on stderr."""
    try:
        return function()
    except BrokenPipeError:  # the reader of the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        return BROKEN_PIPE  # rich has caught it and asked to exit with 1, which of verify means a difference
    except (ValueError, OSError, RuntimeError, MemoryError, ImportError) as error:
        is_of_a_library = isinstance(error, RuntimeError | ImportError)
        lacks_memory = isinstance(error, MemoryError) or bool(is_of_a_library and NO_MEMORY.search(str(error)))
        # Judged without importing the training half.
        is_ours = any(kind.__name__ == "NonFiniteLossError" for kind in type(error).__mro__)
        if is_of_a_library and not (lacks_memory or is_ours):
            raise
        if not _reports_errors():
            time.sleep(SECONDS_APART)
        hint = "; free some space or pass another --output-dir" if _is_disk_full(error) else ""
        name = "out of memory: " if lacks_memory else ""
        show(f"error: {name}{' '.join(str(error).split()) or type(error).__name__}{hint}", is_result=False)
        return USER_ERROR
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one more, as Python clears away, ends that without a traceback
        if _reports_errors():
            print("interrupted: the same command goes on with an unfinished run", file=sys.stderr)
        return INTERRUPTED


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


if __name__ == "__main__":  # accelerate launch --module toolkit.cli: finetune.py where only the package is installed
    finetune_main()
