"""What the operator sees while the service starts: a line per phase, then the banner with commands to paste."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys

import msgspec

from ipc.status_board import BootPhase, StatusSlot
from sparkinfer.config import ServerConfig

PHASE_TEXT = {
    BootPhase.READING_METADATA: "reading metadata",
    BootPhase.LOADING_WEIGHTS: "loading weights",
    BootPhase.ALLOCATING: "allocating the KV cache",
    BootPhase.WARMING_UP: "warming up",
}
PERCENT_STEP = 20


class BootProgress:
    """Prints a worker's phase when it changes, and the loading of weights in steps of PERCENT_STEP."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[BootPhase, int]] = {}

    def show(self, worker: str, status: StatusSlot) -> None:
        """Print a line if `worker` has moved on since the last call."""
        phase = status.phase
        done, total = status.progress
        step = 100 * done // total // PERCENT_STEP if total else 0
        if phase not in PHASE_TEXT or self._shown.get(worker) == (phase, step):
            return
        self._shown[worker] = (phase, step)
        amount = f": {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({100 * done // total} %)" if total else ""
        with contextlib.suppress(OSError):  # nobody reads any more: the server goes on
            print(f"{worker}: {PHASE_TEXT[phase]}{amount}", file=sys.stderr, flush=True)


def announce(server: ServerConfig, service_info: bytes | None) -> None:
    """Print the READY message."""
    with contextlib.suppress(OSError):
        print(banner(server, service_info), flush=True)


def banner(server: ServerConfig, service_info: bytes | None) -> str:
    """The READY message: one curl line and one OpenAI-SDK snippet, both ready to paste."""
    model = msgspec.json.decode(service_info)["model"] if service_info else ""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    scheme = "https" if server.tls_cert else "http"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{server.port}{server.path_prefix}"
    has_keys = bool(server.api_keys or server.api_keys_file)
    key = "YOUR_API_KEY" if has_keys else "none"
    header = f" -H 'Authorization: Bearer {key}'" if has_keys else ""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64})
    return f"""
READY  {url}  {model}

  curl -s {url}/v1/chat/completions{header} -H 'Content-Type: application/json' -d {shlex.quote(body)}

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  for chunk in client.chat.completions.create(model={json.dumps(model)}, stream=True,
                                              messages=[{{"role": "user", "content": "Say hello."}}]):
      print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
"""
