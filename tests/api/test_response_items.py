"""Pages of a stored response's input, and what else is asked of stored responses in vain."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.api.responses.item_page import PageQuery, item_page
from tests.api.app_server import AppServer
from tests.api.error_checks import check_error

OPTIONAL_IDS = st.one_of(st.none(), st.sampled_from(["a", "b", ""]))


@given(st.lists(OPTIONAL_IDS, max_size=12), st.integers(1, 5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_walk_over_the_pages_ends_and_meets_items_once(ids: list[str | None], limit: int, is_first: bool) -> None:
    items = [{"id": own, "number": number} for number, own in enumerate(ids)]
    met: list[int] = []
    query = PageQuery(limit, None, is_first)
    while True:
        page = item_page("resp_1", items, query)
        met += [item["number"] for item in page["data"]]
        assert len(page["data"]) <= limit
        if not page["has_more"]:
            break
        query = query._replace(after=page["last_id"])
    assert met == sorted(set(met), reverse=not is_first)
    own = [name for name in ids if name]
    if len(own) == len(set(own)):
        assert len(met) == len(items)


def _stored(http: httpx.Client, count: int) -> str:
    turns = [{"role": "user", "content": f"{i}"} for i in range(count)]
    return str(http.post("/v1/responses", json={"input": turns, "store": True}).json()["id"])


WALKS: list[tuple[int, dict[str, Any]]] = [(25, {}), (25, {"limit": 4}), (7, {"order": "asc", "limit": 3}), (1, {})]


@pytest.mark.parametrize(("count", "options"), WALKS)
def test_openais_client_walks(app: AppServer, http: httpx.Client, count: int, options: dict[str, Any]) -> None:
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        first = client.responses.input_items.list(_stored(http, count), **options)
        assert len(first.data) == min(count, options.get("limit", 20))
        said = [item.content for item in first]
    assert said == [str(i) for i in range(count)][:: 1 if "order" in options else -1]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=1e1", "limit"), ("limit=", "limit"), ("order=up", "order"),
     ("after=item_x", "after"), ("limit=%F0%28", None)],
)  # fmt: skip
def test_pages_that_are_none(http: httpx.Client, query: str, param: str | None) -> None:
    error = check_error(http.get(f"/v1/responses/{_stored(http, 2)}/input_items?{query}"), 400, None)
    assert error["param"] == param


def test_a_stored_response_is_no_stream(http: httpx.Client) -> None:
    stored = _stored(http, 1)
    error = check_error(http.get(f"/v1/responses/{stored}?stream=true&starting_after=3"), 400, None)
    assert error["param"] == "stream"
    assert http.get(f"/v1/responses/{stored}?stream=false").status_code == 200


def test_nothing_is_compacted(http: httpx.Client) -> None:
    check_error(http.post("/v1/responses/compact", json={"model": "m", "input": "x"}), 501, "compaction_unsupported")


def test_models_are_missed_in_the_clients_own_words(http: httpx.Client) -> None:
    assert check_error(http.get("/v1/models/other"), 404, "model_not_found")["param"] == "model"
    missed = http.get("/v1/models/other", headers={"anthropic-version": "2023-06-01"})
    assert missed.status_code == 404
    assert (missed.json()["type"], missed.json()["error"]["type"]) == ("error", "not_found_error")
