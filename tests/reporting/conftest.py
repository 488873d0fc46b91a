"""Reports without figures."""

import pytest


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, for tests of the text: drawing is what takes the time."""
    monkeypatch.setattr("toolkit.reporting.report.draw", lambda tables: {})
