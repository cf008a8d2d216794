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
from sparkinfer.doctor.session import CheckFailed, Session

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


def examine(session: Session, check: Check) -> str:
    """Why the check fails; "" when it passes."""
    try:
        check(session)
    except CheckFailed as failure:
        return str(failure)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a body of another shape than expected
        return f"unexpected shape: {type(error).__name__}: {error}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when everything passes, else 1."""
    parser = argparse.ArgumentParser(prog="python -m sparkinfer.doctor", description=__doc__)
    parser.add_argument("url", help="of the server's root, such as http://127.0.0.1:8080")
    parser.add_argument("--as", dest="clients", action="append", choices=[*CLIENTS], metavar="CLIENT",
                        help=f"one of {', '.join(CLIENTS)}; may be given again; all of them without it")  # fmt: skip
    parser.add_argument("--key", default="", help="API key")
    given = parser.parse_args(arguments)
    session = Session(given.url, given.key)
    num_failed = num_checks = 0
    for client in given.clients or CLIENTS:
        for check in CLIENTS[client]:
            reason = examine(session, check)
            num_checks += 1
            num_failed += bool(reason)
            verdict = "FAIL" if reason else "ok"
            print(f"{client:<{NAME_WIDTH}}  {verdict:<4}  {check.__doc__ or check.__name__}", flush=True)
            if reason:
                print(f"{'':<{NAME_WIDTH}}        {reason}", flush=True)
    print(f"{num_checks - num_failed} of {num_checks} checks passed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
