"""python -m sparkinfer.doctor URL --as CLIENT: does this server give what the client needs?

Replays the shapes of each client's requests against a running server and prints what passes, and why not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from sparkinfer.doctor.agent_checks import CLAUDE_CODE, CODEX
from sparkinfer.doctor.ollama_checks import COPILOT, OLLAMA
from sparkinfer.doctor.openai_checks import OPEN_WEBUI, OPENAI, OPENROUTER
from sparkinfer.doctor.session import CheckFailed, NoAnswer, Session, shortened

Check = Callable[[Session], None]

CLIENTS: dict[str, tuple[Check, ...]] = {
    "openai": OPENAI,
    "claude-code": CLAUDE_CODE,
    "codex": CODEX,
    "copilot": COPILOT,
    "ollama": OLLAMA,
    "open-webui": OPEN_WEBUI,
    "openrouter": OPENROUTER,
}
NAME_WIDTH = max(map(len, CLIENTS))
MAX_SILENT = 3  # checks in a row that got no answer


class Silent(Exception):
    """The server does not answer; there is no use in asking on."""


class Examination:
    """Checks one after the other, and how they ended."""

    def __init__(self, session: Session) -> None:
        self.num_checks = 0
        self.num_failed = 0
        self._session = session
        self._num_silent = 0

    def examine(self, client: str, check: Check) -> None:
        """Run a check and print what became of it. Raises Silent after too many without an answer."""
        reason = self._why_not(check)
        self.num_checks += 1
        self.num_failed += bool(reason)
        verdict = "FAIL" if reason else "ok"
        print(f"{client:<{NAME_WIDTH}}  {verdict:<4}  {check.__doc__ or check.__name__}", flush=True)
        if reason:
            print(f"{'':<{NAME_WIDTH}}        {reason}", flush=True)
        if self._num_silent == MAX_SILENT:
            raise Silent

    def _why_not(self, check: Check) -> str:
        try:
            check(self._session)
        except NoAnswer as failure:
            self._num_silent += 1
            return str(failure)
        except CheckFailed as failure:
            self._num_silent = 0
            return str(failure)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # a body of another shape than expected
            self._num_silent = 0
            return f"unexpected shape: {type(error).__name__}: {shortened(str(error))}"
        self._num_silent = 0
        return ""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when everything passes, 2 for arguments that make no sense, else 1."""
    parser = argparse.ArgumentParser(prog="python -m sparkinfer.doctor", description=__doc__)
    parser.add_argument("url", help="of the server's root, such as http://127.0.0.1:8080")
    parser.add_argument("--as", dest="clients", action="append", choices=[*CLIENTS], metavar="CLIENT",
                        help=f"one of {', '.join(CLIENTS)}; may be given again; all of them without it")  # fmt: skip
    parser.add_argument("--key", default="", help="API key")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of one request (120)")
    given = parser.parse_args(arguments)
    try:
        session = Session(given.url, given.key, given.timeout)
    except ValueError as error:
        parser.error(str(error))
    examination = Examination(session)
    try:
        for client in given.clients or CLIENTS:
            for check in CLIENTS[client]:
                examination.examine(client, check)
    except Silent:
        print(f"{given.url} does not answer: no more checks were made")
    num_failed, num_checks = examination.num_failed, examination.num_checks
    print(f"{num_checks - num_failed} of {num_checks} checks passed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
