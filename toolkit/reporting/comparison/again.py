"""The runs of a report in, the commands that make these runs and the report again out."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from toolkit.comparison.arms import Group
from toolkit.naming import command_path, command_place
from toolkit.reporting.cells import shell_words
from toolkit.reporting.comparison.run_sections import MANY_RUNS
from toolkit.snapshots.store import Run


def commands_of(
    runs: Sequence[Run | str | Path],
    groups: Sequence[Group],
    out: Path,
    settings: Mapping[str, object],
    *,
    is_arranged: bool,
) -> str:
    """The commands that make the runs and the report, with no absolute path in them, below the line that says where.

    ``is_arranged``: arms or pairs were named in Python, for which there is no flag.
    """
    made = [run.command for group in groups for run in group.runs]
    if len(made) > MANY_RUNS:
        made = [f"# the {len(made)} commands of the runs are in tables/runs.csv"]
    if is_arranged:
        made.append("# arms or pairs were named in Python (toolkit.write_report); this command names its own")
    words = ["--out", command_path(out)]
    for name, value in settings.items():
        words += [f"--{name}", str(value)] if value is not None else []
    places = " ".join(_shown_places([run.path if isinstance(run, Run) else Path(run) for run in runs]))
    return "\n".join([command_place(), *made, f"python -m toolkit report {places} {shell_words(words)}"])


def _shown_places(paths: Sequence[Path]) -> list[str]:
    """Run directories as words for a shell; many as one pattern, if a shell finds these with it in this order only."""
    shown = [command_path(path) for path in paths]
    parents = {path.resolve().parent for path in paths}
    is_here = all(Path(word).resolve() == path.resolve() for word, path in zip(shown, paths, strict=True))
    if len(paths) > MANY_RUNS and len(parents) == 1 and is_here:
        names = [Path(word).name for word in shown]
        there = sorted(path.name for path in parents.pop().iterdir())
        ends = zip(min(names), max(names), strict=False)
        common = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
        for start in ("", common):
            if names == [name for name in there if name.startswith(start) and (start or not name.startswith("."))]:
                return [shell_words([(Path(shown[0]).parent / start).as_posix()]) + ("*" if start else "/*")]
    return [shell_words([word]) for word in shown]
