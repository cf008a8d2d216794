"""What every error of the OpenAI routes has."""

from __future__ import annotations

import httpx


def check_error(response: httpx.Response, status: int, code: str | None) -> dict[str, str]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"] == code
    return error
