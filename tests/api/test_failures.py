"""What clients are told when something fails, before the headers and behind them."""

from __future__ import annotations

import json

import httpx
import pytest

from ipc.messages import Delta, Failed, Started
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, Request
from tests.api.app_server import INFO, AppServer, finished
from tests.api.error_checks import check_error

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}]}


def started_then_failed(request: Request) -> list[list[object]]:
    return [
        [Started(request.request_id, 3)],
        [Delta(request.request_id, 0, "He", "", 1)],
        [Failed(request.request_id, 503, "the engine stopped", None, "engine_unavailable")],
    ]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("status", "retry_after"), [(400, None), (429, "1"), (503, "1"), (500, None)])
def test_failure_before_the_first_token_is_a_real_status(
    app: AppServer, http: httpx.Client, stream: bool, status: int, retry_after: str | None
) -> None:
    app.pool.script = lambda request: [[Failed(request.request_id, status, "no", "messages", "some_code")]]
    response = http.post(CHAT, json=BODY | {"stream": stream})
    assert check_error(response, status, "some_code")["param"] == "messages"
    assert response.headers.get("retry-after") == retry_after


def test_failure_in_a_stream_is_its_last_event(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = started_then_failed
    response = http.post(CHAT, json=BODY | {"stream": True})
    assert response.status_code == 200
    *_, error, done, rest = response.text.split("\n\n")
    assert json.loads(error[6:])["error"]["code"] == "engine_unavailable"
    assert (done, rest) == ("data: [DONE]", "")
    assert '"finish_reason":"stop"' not in response.text


def test_failure_of_a_whole_answer_is_a_status(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = started_then_failed
    check_error(http.post(CHAT, json=BODY), 503, "engine_unavailable")


def test_one_failed_prompt_fails_the_request_and_stops_the_others(app: AppServer, http: httpx.Client) -> None:
    def script(request: Request) -> list[object]:
        if request.prompt.text == "bad":  # type: ignore[union-attr]
            return [[Failed(request.request_id, 400, "no")]]
        return [[Started(request.request_id, 1)], ...]

    app.pool.script = script  # type: ignore[assignment]
    check_error(http.post("/v1/completions", json={"prompt": ["good", "bad", "good"]}), 400, None)
    assert {app.pool.aborts.get(timeout=10) for _ in range(2)}
    assert app.pool.aborts.empty()


def test_an_aborted_sequence_is_no_silent_success(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 1)], [finished(r, reason=FinishReason.ABORT)]]
    check_error(http.post(CHAT, json=BODY), 503, "aborted")


def test_not_ready(app: AppServer, http: httpx.Client) -> None:
    app.service.is_ready = False
    for response in (http.post(CHAT, json=BODY), http.post("/v1/tokenize", json=BODY), http.get("/ready")):
        check_error(response, 503, "not_ready")
        assert response.headers["retry-after"] == "1"
    health = http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    assert health.json()["reason"]
    assert http.get("/v1/models").json()["data"][0]["is_ready"] is False
    assert http.get("/v1/capacity").json()["accepting_requests"] is False


def test_a_server_that_still_loads_its_model_is_healthy(app: AppServer, http: httpx.Client) -> None:
    app.service.model_info, app.service.is_ready = None, False
    try:
        assert http.get("/health").json() == {"status": "ok"}
        assert [http.get(path).status_code for path in ("/ready", "/v1/models")] == [503, 503]
    finally:
        app.service.model_info = INFO


def test_pool_refusal(app: AppServer, http: httpx.Client) -> None:
    app.pool.refusal = RequestError(503, "full", code="overloaded")
    check_error(http.post(CHAT, json=BODY), 503, "overloaded")


def test_draining_refuses_new_requests_only(app: AppServer, http: httpx.Client) -> None:
    app.generations.is_draining = True
    check_error(http.post(CHAT, json=BODY), 503, "shutting_down")
    check_error(http.get("/ready"), 503, "shutting_down")
    assert http.get("/health").status_code == 200


def test_bug_of_ours_costs_one_request(app: AppServer, http: httpx.Client) -> None:
    app.pool.refusal = ZeroDivisionError("bug")  # type: ignore[assignment]
    error = check_error(http.post(CHAT, json=BODY), 500, "internal_error")
    assert "bug" not in error["message"]
    assert 'requests_by_outcome_total{outcome="server_error"}' in http.get("/metrics").text
    app.pool.refusal = None
    assert http.post(CHAT, json=BODY).status_code == 200
