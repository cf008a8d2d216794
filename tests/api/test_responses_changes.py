"""Items of the Responses API that change what may be called and said from there on, and those nobody can read."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sparkinfer.api.responses.request import ResponsesRequest, parse_responses_request
from sparkinfer.api.responses.tools import ClientTool
from sparkinfer.request import JsonSchemaFormat
from tests.api.app_server import AppServer
from tests.api.parsing import INFO, new_ids, refused
from tests.api.test_responses_request import FUNCTION, HOSTED, PATCH, asked, user

SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}


def late(*tools: dict[str, Any], kind: str = "additional_tools") -> dict[str, Any]:
    return {"type": kind, "role": "developer", "tools": list(tools)}


def offered(found: ResponsesRequest) -> list[str]:
    return [tool.name for tool in found.generation.requests[0].prompt.tools]


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_tools_may_come_late(kind: str) -> None:
    found = asked(input=[user("a"), late(FUNCTION, PATCH, {"type": "web_search"}, kind=kind)], tool_choice="required")
    assert offered(found) == ["get_weather", "apply_patch"]
    assert found.generation.skipped_tools == ("web_search",)
    assert found.tools["apply_patch"] == ClientTool("apply_patch", is_custom=True)
    assert found.generation.requests[0].tool_policy.choice == "required"


def test_a_tool_that_is_offered_already_stays() -> None:
    again = FUNCTION | {"description": "Another."}
    assert offered(asked(input=[user("a"), late(again), late(again)], tools=[FUNCTION])) == ["get_weather"]


def test_tools_of_earlier_turns_stay() -> None:
    def history(_: str) -> list[dict[str, Any]]:
        return [user("a"), late(FUNCTION), {"role": "assistant", "content": "b"}]

    assert offered(asked(history, previous_response_id="resp_1", input=[user("c")])) == ["get_weather"]


def test_the_last_update_counts() -> None:
    updates = [
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "text": {"format": SCHEMA}, "reasoning": {"effort": "high"}},
    ]
    request = asked(input=[user("a"), *updates], reasoning={"effort": "none"}).generation.requests[0]
    assert isinstance(request.output_format, JsonSchemaFormat)
    assert request.prompt.template_kwargs["reasoning_effort"] == "high"


def test_what_nobody_can_read_is_refused() -> None:
    body = {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}, user("a")]}
    assert refused(parse_responses_request, body, INFO, new_ids(), lambda _: []).param == "input[0]"


def test_a_pattern_of_a_freeform_tool_is_kept_to() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+|x"}
    (made,) = asked(tools=[{"type": "custom", "name": "dial", "format": form}]).generation.requests[0].prompt.tools
    assert json.loads(made.parameters)["properties"]["input"]["pattern"] == "^(?:[0-9]+|x)$"


def test_the_header_of_skipped_tools_is_bounded(http: httpx.Client, app: AppServer) -> None:
    tools = [{"type": f"hosted é\r\n{i}"} for i in range(5000)]
    reply = http.post("/v1/responses", json={"input": "a", "tools": [*tools, *HOSTED]})
    assert reply.status_code == 200
    assert 0 < len(reply.headers["x-sparkinfer-skipped-tools"]) < 2000
