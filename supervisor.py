"""`python supervisor.py --config prod.toml`: starts every process of the server, watches them, drains on SIGTERM.

Owns the run directory, all shared memory, the children and the exit code. Never handles a request, never imports torch.
Exit codes: 0 clean, 1 open requests were cut off, 3 a worker failed to boot, 4 bad configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from ipc.fabric import Fabric
from ipc.messages import Drain, PeerDown, PeerUp, Reload
from ipc.status_board import WorkerState
from ipc.worker_spec import WorkerSpec
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config, cache_dir, load_config
from sparkinfer.errors import CheckpointError, ConfigError
from sparkinfer.log import setup_logging
from workers import compile_ahead
from workers.boot_progress import BootProgress, announce
from workers.child import Child, worker_names
from workers.command_line import overrides, parse_arguments
from workers.config_checks import check
from workers.listen_address import AddressInUse, claim_address
from workers.run_dir import create_run_dir
from workers.standard_streams import open_standard_streams

log = logging.getLogger("supervisor")

MODULES = {"gpu": "workers.gpu_scheduler", "text": "workers.text", "http": "workers.http_frontend"}
EXIT_CLEAN, EXIT_CUT, EXIT_BOOT, EXIT_CONFIG = 0, 1, 3, 4
MAX_BOOT_FAILURES = 3        # respawns in a row that never became READY before the service gives up
MAX_CRASHES = 10             # deaths in a row, each within a minute of its spawn, before the service gives up
SAME_SIGNAL_S = 0.1          # `timeout` and process groups deliver one wish twice
ABORT_GRACE_S = 2.0          # SIGABRT (a stack dump) to SIGKILL
STOP_GRACE_S = 2.0           # SIGTERM to SIGKILL for processes that hold no request


class Supervisor:
    """The parent process. Signals are queued by the handler; everything else happens in `run`'s loop."""

    def __init__(self, config: Config, model_path: Path, vocab_size: int, run_dir: Path) -> None:
        self.config = config
        self.model_path = model_path
        self.run_dir = run_dir
        names = worker_names(config.server)
        self.fabric = Fabric(names, config.scheduler.max_num_seqs, vocab_size)
        self.children = [
            Child(name, MODULES[name.partition("-")[0]], self.fabric.board.slot(i)) for i, name in enumerate(names)
        ]
        self.progress = BootProgress()
        self.announced = False
        self.exit_code: int | None = None
        self.drain_started_at = 0.0
        self.was_cut = False              # a drain did not end every request as it should
        self._signals: list[int] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Serve until a signal or a fatal failure; returns the exit code."""
        signal.set_wakeup_fd(self._wake_write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda received, _frame: self._signals.append(received))
        try:
            for child in self.children:
                self._spawn(child)
            while self.exit_code is None:
                self._wait()
                self._handle_signals()
                self._reap()
                self._follow_boot()
                self._check_heartbeats()
                self._respawn_due()
                self._follow_drain()
            return self.exit_code
        finally:
            self._stop_all()
            self.fabric.close()

    def _wait(self) -> None:
        booting = any(child.pid and not child.is_ready for child in self.children)
        planned = any(child.respawn_at for child in self.children)
        select.select([self._wake_read], [], [], 0.05 if booting or planned else 0.25)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGCHLD:
                continue
            if number == signal.SIGHUP:
                self._reload()
                continue
            if not self.drain_started_at:
                self._drain(signal.Signals(number).name)
            elif time.monotonic() - self.drain_started_at > SAME_SIGNAL_S:
                log.warning("second signal: stopping at once")
                self.exit_code = EXIT_CUT if self._open_http() else EXIT_CLEAN
                for child in self.children:
                    child.kill(signal.SIGKILL)

    def _drain(self, reason: str) -> None:
        log.info("%s: draining", reason)
        self.drain_started_at = time.monotonic()
        for child in self._open_http():
            if child.is_ready and child.outbox is not None:
                child.outbox.send(Drain(self.config.server.drain_grace_s))
            else:
                child.kill(signal.SIGKILL)

    def _reload(self) -> None:
        log.info("SIGHUP: reading the API keys again")
        for child in self._open_http():
            if child.outbox is not None:
                child.outbox.send(Reload())

    def _spawn(self, child: Child) -> None:
        names = tuple(c.name for c in self.children)
        spec = WorkerSpec(
            name=child.name,
            index=int(child.name.partition("-")[2]),
            slot=names.index(child.name),
            generation=child.generation + 1,
            supervisor_pid=os.getpid(),
            run_dir=str(self.run_dir),
            config=dataclasses.asdict(self.config),
            model_path=str(self.model_path),
            workers=names,
            board_fd=self.fabric.board.fd,
            mask_table_fd=self.fabric.mask_table.fd,
            rings=self.fabric.rings_of(child.name),
        )
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self.run_dir / "metrics")}
        try:
            child.spawn(spec, self.fabric.inherited_fds(child.name), environment)
        except OSError as error:
            self._spawn_failed(child, error)

    def _spawn_failed(self, child: Child, error: OSError) -> None:
        """No process, no memory, no descriptor to be had: while serving, the other workers go on and it is retried."""
        log.error("%s cannot be started: %s", child.name, error.strerror)
        if not self.announced:
            self.exit_code = EXIT_BOOT
            return
        child.failed_spawns += 1
        log.info("%s: next start in %.1f s", child.name, child.plan_respawn())

    def _reap(self) -> None:
        """Collect every dead child, also ones that are not ours (as PID 1 in a container)."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children:
                if child.pid == pid:
                    self._child_died(child, os.waitstatus_to_exitcode(wait_status))

    def _child_died(self, child: Child, code: int) -> None:
        was_ready, description = child.is_ready, child.describe_exit(code)
        child.died()
        child.status.mark_stopped()
        for peer in self.children:
            if peer.pid and peer.outbox is not None:
                peer.outbox.send(PeerDown(child.name, child.generation))
        if self.drain_started_at:
            self.was_cut |= was_ready and (code != EXIT_CLEAN or child not in self._http())
            return
        log.error("%s died: %s", child.name, description)
        if code in (EXIT_BOOT, EXIT_CONFIG) and not was_ready:
            self.exit_code = code
        elif not self.announced or child.failures > (MAX_CRASHES if was_ready else MAX_BOOT_FAILURES):
            self.exit_code = EXIT_BOOT
            log.error("giving up: %s", f"{child.name} died {child.failures} times in a row" if self.announced
                      else f"{child.name} died before the server was up")
        else:
            log.info("%s: next start in %.1f s", child.name, child.plan_respawn())

    def _follow_boot(self) -> None:
        for child in self.children:
            if not child.pid or child.is_ready:
                continue
            self.progress.show(child.name, child.status)
            if child.status.state == WorkerState.READY:
                self._child_ready(child)
            elif time.monotonic() - child.spawned_at > self.config.server.boot_timeout_s:
                log.error("%s: not ready after %.0f s", child.name, self.config.server.boot_timeout_s)
                child.kill(signal.SIGKILL)
                self.exit_code = EXIT_BOOT
        if not self.announced and all(child.is_ready for child in self.children) and not self.drain_started_at:
            self.announced = True
            announce(self.config.server, self.fabric.board.read_service_info())

    def _child_ready(self, child: Child) -> None:
        child.is_ready = True
        log.info("%s ready after %.1f s", child.name, time.monotonic() - child.spawned_at)
        for peer in self.children:
            if peer is child or not peer.is_ready or peer.outbox is None or child.outbox is None:
                continue
            peer.outbox.send(PeerUp(child.name, child.generation))
            child.outbox.send(PeerUp(peer.name, peer.generation))

    def _check_heartbeats(self) -> None:
        """A worker whose main loop stands still gets SIGABRT (it dumps its stacks), then SIGKILL."""
        now = time.monotonic()
        for child in self.children:
            if not child.is_ready:
                continue
            if child.aborted_at:
                if now - child.aborted_at > ABORT_GRACE_S:
                    child.kill(signal.SIGKILL)
            elif now - child.status.heartbeat_ns / 1e9 > self.config.server.heartbeat_timeout_s:
                log.error("%s: no heartbeat for %.0f s", child.name, self.config.server.heartbeat_timeout_s)
                child.aborted_at = now
                child.kill(signal.SIGABRT)

    def _respawn_due(self) -> None:
        for child in self.children:
            if child.respawn_at and time.monotonic() >= child.respawn_at and not self.drain_started_at:
                self._spawn(child)

    def _follow_drain(self) -> None:
        """The drain is over when every http worker has finished its requests and exited."""
        if not self.drain_started_at or self.exit_code is not None:
            return
        if not self._open_http():
            self.exit_code = EXIT_CUT if self.was_cut else EXIT_CLEAN
            return
        grace = self.config.server.drain_grace_s
        if grace and time.monotonic() - self.drain_started_at > grace + STOP_GRACE_S:
            self.exit_code = EXIT_CUT

    def _http(self) -> list[Child]:
        return [child for child in self.children if child.name.startswith("http-")]

    def _open_http(self) -> list[Child]:
        return [child for child in self._http() if child.pid]

    def _stop_all(self) -> None:
        for child in self.children:
            child.kill(signal.SIGTERM)
        cache = self.config.prefix_cache
        deadline = time.monotonic() + STOP_GRACE_S + (cache.save_grace_s if cache.directory else 0.0)
        while any(child.pid for child in self.children):
            if time.monotonic() > deadline:
                for child in self.children:
                    child.kill(signal.SIGKILL)
            for child in self.children:
                if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
                    child.died()
            time.sleep(0.005)


def main(argv: list[str] | None = None) -> int:
    open_standard_streams()
    arguments = parse_arguments(argv)
    try:
        config = load_config(arguments.config, overrides(arguments))
        check(config)
        if arguments.check_config:
            print("configuration OK")
            return EXIT_CLEAN
        setup_logging("supervisor", config.log.level)
        server, claim = claim_address(config.server)
        config = dataclasses.replace(config, server=server)
        model_path = resolve(config.model.path, cache_dir(config.model))
        hparams = HParams.from_gguf(gguf := GGUFFile.open(model_path))
        run_dir, lock = create_run_dir(config.server.run_dir)
    except (ConfigError, CheckpointError, AddressInUse) as error:
        print(f"sparkinfer: {error}", file=sys.stderr)
        return EXIT_BOOT if isinstance(error, AddressInUse) else EXIT_CONFIG
    with claim, lock:
        try:
            compile_ahead.start(config, gguf, hparams)
            return Supervisor(config, model_path, hparams.vocab_size, run_dir).run()
        except MemoryError as error:  # Segment.create
            print(f"sparkinfer: {error}", file=sys.stderr)
            return EXIT_BOOT
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
