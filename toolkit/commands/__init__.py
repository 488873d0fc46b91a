"""The flags of each command of ``python -m toolkit`` in, its exit code out: one file per command."""

from typing import Annotated

import tyro

from toolkit.commands.drift import Drift
from toolkit.commands.positions import Positions
from toolkit.commands.report import Report
from toolkit.commands.study import StudyCommand
from toolkit.commands.verify import Verify

Command = (
    Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Drift, tyro.conf.subcommand("drift")]
    | Annotated[Positions, tyro.conf.subcommand("positions")]
    | Annotated[StudyCommand, tyro.conf.subcommand("study")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
)
