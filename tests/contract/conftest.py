"""The contract holds for every file in latecomer/methods; a new file is tested without touching anything here."""

import pytest

from latecomer import methods


@pytest.fixture(params=sorted(methods.names()))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a method."""
    found: str = request.param
    return found
