"""What a generator makes of the OpenAPI document: no fault of ours, no answer that the document does not describe."""

from __future__ import annotations

import os
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from sparkinfer.api.openapi import openapi_document
from tests.api.app_server import AppServer

SCHEMA = schemathesis.openapi.from_dict(openapi_document("1", "", has_keys=False))
CHECKS = [
    not_a_server_error, content_type_conformance, negative_data_rejection, response_schema_conformance,
    status_code_conformance,
]  # fmt: skip
MAX_EXAMPLES = int(os.environ.get("SPARKINFER_SCHEMA_EXAMPLES", "5"))  # of each route


@SCHEMA.parametrize()
@settings(
    max_examples=MAX_EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_generated_requests(case: Any, shared_app: AppServer) -> None:
    case.call_and_validate(base_url=shared_app.url, checks=CHECKS, timeout=30)
