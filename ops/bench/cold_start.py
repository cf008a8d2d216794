"""From launching the supervisor to READY and to the first token over HTTP, with nothing compiled and with all of it.

    python ops/bench/cold_start.py [--runs 5] [--model REFERENCE]

The model file must have been fetched. The client asks as soon as the port answers, and again until it is served.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir

LIMIT_S, POLL_S = 120.0, 0.02
BODY = json.dumps({
    "model": "default", "messages": [{"role": "user", "content": "What is the capital of France?"}], "stream": True,
    "max_tokens": 8, "temperature": 0,
})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch_and_ask(model: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds to the READY line and to the first token; seconds of CPU time of all processes, their end included."""
    port, ready = free_port(), []
    command = [sys.executable, str(ROOT / "supervisor.py"), "--set", f"server.port={port}", "--set",
               f"model.path={model}", "--set", f"model.cache_dir={folder}"]
    before, started = sum(os.times()[2:4]), time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)

    def watch() -> None:
        assert server.stdout is not None
        for line in server.stdout:
            if line.startswith(b"READY"):
                ready.append(time.perf_counter() - started)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        while not _first_token_came(port):
            if server.poll() is not None or time.perf_counter() - started > LIMIT_S:
                raise SystemExit("the server did not answer")
            time.sleep(POLL_S)  # asking takes cores from what is measured
        first = time.perf_counter() - started
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        watcher.join()
    return ready[0], first, sum(os.times()[2:4]) - before


def _first_token_came(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/chat/completions", BODY, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return False
        for line in response:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return True
    except OSError:
        return False
    finally:
        connection.close()
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    arguments = parser.parse_args()
    model = resolve(arguments.model, cache_dir(ModelConfig()))
    print(f"{'':>8}  READY s  first token s  CPU s   load")
    for title in ("cold", "warm"):
        runs = []
        folder = Path(tempfile.mkdtemp())
        for _ in range(arguments.runs):
            if title == "cold":
                shutil.rmtree(folder)
                folder.mkdir()
            elif not runs:
                launch_and_ask(model, folder)  # compiles
            runs.append(launch_and_ask(model, folder))
            print(f"{'':>8}  {runs[-1][0]:7.2f}  {runs[-1][1]:13.2f}  {runs[-1][2]:5.1f}  {os.getloadavg()[0]:5.1f}")
        shutil.rmtree(folder)
        ready, first, cpu = (statistics.median(column) for column in zip(*runs))
        print(f"{title:>8}  {ready:7.2f}  {first:13.2f}  {cpu:5.1f}  median of {len(runs)}", flush=True)


if __name__ == "__main__":
    main()
