"""The commands of ``python -m toolkit``: one file each."""

from typing import Annotated

import tyro

from toolkit.commands.anatomy import AnatomyCommand
from toolkit.commands.drift import DriftCommand
from toolkit.commands.flow import FlowCommand
from toolkit.commands.layers import LayersCommand
from toolkit.commands.positions import PositionsCommand
from toolkit.commands.report import ReportCommand
from toolkit.commands.study import StudyCommand
from toolkit.commands.transplant import TransplantCommand
from toolkit.commands.verify import VerifyCommand

Command = (
    Annotated[ReportCommand, tyro.conf.subcommand("report")]
    | Annotated[DriftCommand, tyro.conf.subcommand("drift")]
    | Annotated[FlowCommand, tyro.conf.subcommand("flow")]
    | Annotated[LayersCommand, tyro.conf.subcommand("layers")]
    | Annotated[PositionsCommand, tyro.conf.subcommand("positions")]
    | Annotated[AnatomyCommand, tyro.conf.subcommand("anatomy")]
    | Annotated[StudyCommand, tyro.conf.subcommand("study")]
    | Annotated[TransplantCommand, tyro.conf.subcommand("transplant")]
    | Annotated[VerifyCommand, tyro.conf.subcommand("verify")]
)
