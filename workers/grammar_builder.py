"""A text worker's helper: turns a client's schemas into the text of a grammar, in a process that can be killed.

Reads orders from standard input and answers each on standard output, one at a time, each done by
a fork of its own, so that giving one up costs nothing. Knows schemas; never tokens, masks or sequences.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import sys
import time

import msgspec
import numpy as np
from llguidance import LLTokenizer

from ipc.peer_death import die_with_parent
from sparkinfer.engine.mask_source import WORD_BITS, lowest_allowed
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_spec import CallCheck, GrammarSpec
from sparkinfer.grammar.matcher import GrammarError, Matcher, NotAllowedError
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from sparkinfer.grammar.trial import EMPTY, place_to_blame
from sparkinfer.text.answer_grammar import OnBegun, answer_grammar
from sparkinfer.text.earlier_calls import check_calls
from workers.grammar_frame import (
    BuilderNews,
    BuilderReply,
    Built,
    Lost,
    Order,
    Refused,
    Spent,
    Working,
    read_frame,
    write_frame,
)

MAX_MEMORY_BYTES = 4 << 30
NICENESS, SLOW_NICENESS = 5, 10
REPORT_CPU_S, REPORT_S = 0.05, 1.0  # how often what a job has taken is told
MIN_POLL_S = 0.005
NUM_STEPS_TRIED = 8
_IN, _OUT = 0, 1  # descriptors
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BuilderReply | BuilderNews)
_order_decoder = msgspec.msgpack.Decoder(Order)
_job_decoder = msgspec.msgpack.Decoder(GrammarSpec | CallCheck)
_TOOL = re.compile(r"tools\[(\d+)\]")


def build(spec: GrammarSpec | CallCheck, on_begun: OnBegun = lambda path: None) -> BuilderReply:
    """The grammar of an answer, tried out on a vocabulary of bytes; or an empty one for calls that are right.

    on_begun: told the path of each part of the request before it is worked out
    """
    begun: list[str] = []

    def note(path: str) -> None:
        begun.append(path)
        on_begun(path)

    try:
        if isinstance(spec, CallCheck):
            check_calls(spec)
            return Built("", ())
        grammar = answer_grammar(spec, note)
        problem = _problem_with(grammar, byte_tokenizer(spec.special_tokens))
        if problem is not None:
            path, text = problem
            return _refused(path or _common(begun), text, "invalid_grammar", spec)
        return Built(grammar.lark, grammar.approximations, grammar.free_text)
    except RequestError as error:
        return _refused(error.param, error.message, error.code, spec)
    except RecursionError:
        return _refused(_common(begun[-1:]), "is nested too deeply", "schema_too_complex", spec)
    except MemoryError:
        return _refused(_common(begun[-1:]), "takes too much memory", "schema_too_complex", spec)


def _common(paths: list[str]) -> str | None:
    """What is to blame when all of `paths` may be."""
    return "tools" if len(paths) > 1 else paths[0] if paths else None


def _refused(path: str | None, text: str, code: str | None, spec: GrammarSpec | CallCheck) -> Refused:
    """A 400 that names the path and, where it leads into a function, the function."""
    message = text if path is None or text.startswith(path) else f"{path}: {text}"
    tool = _TOOL.match(path or "")
    if tool is not None and isinstance(spec, GrammarSpec):
        message += f" (function {spec.tools[int(tool[1])].name!r})"
    return Refused(400, message, path, code)


def _problem_with(grammar: OutputGrammar, tokenizer: LLTokenizer) -> tuple[str | None, str] | None:
    """The place in the request that makes a grammar unusable, and why; None for one that works."""
    try:
        _try_out(grammar, tokenizer)
    except GrammarError as error:
        asked_for = set(grammar.places.values())
        only = asked_for.pop() if len(asked_for) == 1 else None  # what nobody asked for is in order
        return place_to_blame(grammar, tokenizer) or only, _in_plain_words(error)
    return None


def _in_plain_words(error: GrammarError) -> str:
    if isinstance(error, NotAllowedError):  # it was allowed, but nothing that may follow comes to an end
        return "no text satisfies it, or a part of it: that goes on for ever"
    if EMPTY in str(error):
        return "no text satisfies it, or a part of it"
    return f"the grammar cannot be compiled: {error}"


def _try_out(grammar: OutputGrammar, tokenizer: LLTokenizer) -> None:
    """Compile it and go some way with it: what is too large shows at the first masks. Raises GrammarError."""
    matcher = Matcher.compile(grammar, tokenizer)
    words = np.zeros(-(-tokenizer.vocab_size // WORD_BITS), np.int32)
    for _ in range(NUM_STEPS_TRIED):
        matcher.fill(words)
        token_id = lowest_allowed(words.tolist(), tokenizer.vocab_size)
        if matcher.is_over or token_id is None:
            return
        matcher.accept(token_id)


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    os.nice(NICENESS)
    _limit_memory(MAX_MEMORY_BYTES)
    write_frame(_OUT, b"")
    while (order := read_frame(_IN)) is not None:
        if order and not _run(_order_decoder.decode(order)):  # an empty one was meant for a job that is done
            return


def _limit_memory(num_bytes: int) -> None:
    """Of this process and its children, which may have a lower limit already."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _run(order: Order) -> bool:
    """Have a process of its own do one job, which may be given up meanwhile; False at the end of the input."""
    results, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        die_with_parent(os.getppid())
        if order.is_slow:
            os.nice(SLOW_NICENESS - NICENESS)
        _work(order.payload, theirs)
        os._exit(0)
    os.close(theirs)
    goes_on, is_done = _wait_for(pid, results)
    os.close(results)
    os.waitpid(pid, 0)
    if not is_done:
        write_frame(_OUT, _encoder.encode(Lost()))
    return goes_on


def _wait_for(pid: int, results: int) -> tuple[bool, bool]:
    """Pass on what a process says about its job. Returns whether the input goes on, and whether the job was done."""
    poller = select.poll()
    for fd in (results, _IN):
        poller.register(fd, select.POLLIN)
    goes_on, meter = True, Meter(pid)
    while True:
        readable = {fd for fd, _ in poller.poll(1000 * meter.quiet_s)}
        if results in readable:
            message = read_frame(results)
            if message is None:
                return goes_on, False
            write_frame(_OUT, message)
            if not isinstance(_decoder.decode(message), Working):  # what comes in now is the next job
                return goes_on, True
        elif _IN in readable:
            goes_on = read_frame(_IN) is not None
            poller.unregister(_IN)
            os.kill(pid, signal.SIGKILL)
        elif (spent_s := meter.read()) is not None:
            write_frame(_OUT, _encoder.encode(Spent(spent_s)))


class Meter:
    """The processor's time that a process has taken, as it is to be told."""

    def __init__(self, pid: int) -> None:
        self._clock = ~pid << 3 | 2   # as clock_getcpuclockid(3) has it on Linux
        self._told_s, self._told_at = 0.0, time.monotonic()
        self.quiet_s = REPORT_CPU_S   # nothing is to be told before

    def read(self) -> float | None:
        """The time taken, if it is to be told."""
        spent_s, now = time.clock_gettime(self._clock), time.monotonic()
        if spent_s - self._told_s < REPORT_CPU_S and now - self._told_at < REPORT_S:
            self.quiet_s = max(MIN_POLL_S, self._told_s + REPORT_CPU_S - spent_s)
            return None
        self._told_s, self._told_at, self.quiet_s = spent_s, now, REPORT_CPU_S
        return spent_s


def _work(job: bytes, fd: int) -> None:
    reply = build(_job_decoder.decode(job), lambda path: write_frame(fd, _encoder.encode(Working(path))))
    write_frame(fd, _encoder.encode(reply))


if __name__ == "__main__":
    main()
