"""What the OpenAPI document promises, by requests that schemathesis makes up from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks
from schemathesis.generation import GenerationMode
from starlette.testclient import TestClient

from fakes import FakeBundle
from latecomer.serve.app import make
from latecomer.serve.keys import Keys
from latecomer.serve.service import Service
from latecomer.serve.settings import Serving

CHECKS = [  # not those that want every number to be welcome: from some no model can be made
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.ignored_auth,
]
MADE_UP = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(params=["describe", "fit"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """The document, and the header of a key that opens everything."""
    keys, text = Keys().new("tester", ["models", "encoder", "metrics"])
    keys.write(tmp_path / "keys.json")
    path = FakeBundle.make(tmp_path / "bundle", rule=request.param, gate=True)
    free = Serving(rate=1e6, burst=10**6, keys=str(tmp_path / "keys.json"))
    app = make(Service(path, free, FakeBundle.open))
    with TestClient(app):
        yield schemathesis.openapi.from_asgi("/openapi.json", app), {"Authorization": f"Bearer {text}"}


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_happens_that_the_document_does_not_say(api: tuple[Any, dict[str, str]], mode: GenerationMode) -> None:
    document, header = api
    operations = [found.ok() for found in document.get_all_operations()]
    assert {"POST /v1/models", "GET /v1/encoder", "GET /metrics"} <= {one.label for one in operations}
    for operation in operations:
        if mode == GenerationMode.NEGATIVE and operation.method != "post":  # there is nothing to do wrong
            continue

        @MADE_UP
        @given(case=operation.as_strategy(generation_mode=mode))
        def holds(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, headers=dict(header))

        holds()
