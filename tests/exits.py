"""How a command ends."""

import pytest

from toolkit.cli import main


def exit_code_of(*words: object) -> object:
    """What the command of these words exits with."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code
