"""The commands of ``python -m toolkit``: one file each."""

from typing import Annotated

import tyro

from toolkit.commands.anatomy import AnatomyCommand
from toolkit.commands.drift import Drift
from toolkit.commands.flow import FlowCommand
from toolkit.commands.layers import Layers
from toolkit.commands.positions import Positions
from toolkit.commands.report import Report
from toolkit.commands.study import StudyCommand
from toolkit.commands.transplant import Transplant
from toolkit.commands.verify import Verify

Command = (
    Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Drift, tyro.conf.subcommand("drift")]
    | Annotated[FlowCommand, tyro.conf.subcommand("flow")]
    | Annotated[Layers, tyro.conf.subcommand("layers")]
    | Annotated[Positions, tyro.conf.subcommand("positions")]
    | Annotated[AnatomyCommand, tyro.conf.subcommand("anatomy")]
    | Annotated[StudyCommand, tyro.conf.subcommand("study")]
    | Annotated[Transplant, tyro.conf.subcommand("transplant")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
)
