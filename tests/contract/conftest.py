"""The contract holds for every file in latecomer/methods; a new file is tested without touching anything here."""

import pytest

import toys
from latecomer import methods


@pytest.fixture(params=sorted(methods.names()))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a method."""
    found: str = request.param
    return found


@pytest.fixture(params=[*sorted(methods.names()), *toys.VARIANTS])
def variant(request: pytest.FixtureRequest) -> str:
    """The name of a method, or of a variant of one: for what depends on what crosses and on what a client keeps."""
    found: str = request.param
    return found
