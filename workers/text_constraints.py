"""What holds the text worker's answers to their form: from a GrammarSpec to masks, request by request.

Owns grammars and rows of the mask table while a request needs them; never prompts, streams or rings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from ipc.mask_table import rows_per_text_worker
from ipc.status_board import TextGauge
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar
from sparkinfer.request import GrammarFormat, OutputFormat, RegexFormat, Request, RequestId
from sparkinfer.text.prompt_encoder import EncodedPrompt
from sparkinfer.text.tokenizer import Tokenizer
from workers.mask_stats import MaskStats
from workers.process import WorkerContext
from workers.shared_work import IsWanted
from workers.text_grammars import Asker, Grammars
from workers.text_masks import MaskWriter

# How long a thread that computes masks waits for the GIL at most while the next forward runs. Python's 5 ms are a step.
SWITCH_INTERVAL_S = 0.0005
UNCHECKED = ("everything",)  # approximations where no grammar holds the answer


@dataclass(frozen=True, slots=True)
class Constraint:
    """A request's grammar, and a row of the mask table for each of its choices."""

    grammar: CompiledGrammar | None = None
    mask_rows: tuple[int, ...] = ()

    @property
    def approximations(self) -> tuple[str, ...]:
        """ "path: keyword" of what the finished answer has to be checked for."""
        return UNCHECKED if self.grammar is None else self.grammar.approximations


UNCONSTRAINED = Constraint()


class Constraints:
    """Used on the worker's event loop."""

    def __init__(
        self, context: WorkerContext, tokenizer: Tokenizer, on_failure: Callable[[RequestId, RequestError], None]
    ) -> None:
        """on_failure: a request's grammar cannot go on."""
        self._config = context.config.grammar
        self._status = context.status
        self._grammars = Grammars(tokenizer, self._config)
        self._stats = MaskStats()
        count = rows_per_text_worker(context.config.scheduler.max_num_seqs)
        first = context.spec.index * count
        rows = range(first, first + count)
        self._masks = MaskWriter(context.mask_table, rows, self._stats, on_failure, self._config.fast_forward)
        self._begun: dict[RequestId, int] = {}  # with the number of choices

    async def start(self) -> None:
        """Get ready for the first request that needs a grammar."""
        if self._config.enabled:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            await self._grammars.start()

    async def prepare(
        self, request: Request, encoded: EncodedPrompt, is_open: IsWanted
    ) -> Constraint:
        """Compile what an answer has to obey and wait for rows. Raises RequestError 400 for what cannot be held.

        is_open: whether the request is still open
        """
        if not self._config.enabled:
            _refuse_unchecked(request.output_format)
        asker = Asker(request.client_id, is_open)
        spec = encoded.grammar_spec
        grammar = await self._grammars.compiled(spec, asker) if spec is not None else None
        if encoded.earlier_calls is not None:
            await self._grammars.check(encoded.earlier_calls, asker)
        if grammar is None or spec is None or not self._config.enabled or not request.sampling.max_tokens:
            return UNCONSTRAINED  # but what was asked for is known to be in order
        self._stats.num_tool_requests += bool(spec.tools)
        self._stats.num_forced_requests += bool(spec.tools) and spec.policy.choice == "required"
        self._stats.num_structured_requests += spec.output_format is not None
        return Constraint(grammar, tuple(await self._masks.take_rows(request.n)))

    def begin(self, request_id: RequestId, constraint: Constraint, num_prompt_tokens: int) -> None:
        """The request goes to the scheduler: have its first masks computed."""
        if constraint.grammar is None:
            return
        self._begun[request_id] = len(constraint.mask_rows)
        for choice, row in enumerate(constraint.mask_rows):
            self._masks.begin(request_id, choice, row, constraint.grammar, num_prompt_tokens)

    def give_back(self, constraint: Constraint) -> None:
        """The request ended before it began."""
        self._masks.give_back(list(constraint.mask_rows))

    def push(self, request_id: RequestId, choice: int, token_id: int) -> None:
        """A token of some choice; nothing happens before `flush`."""
        if self._begun:
            self._masks.push(request_id, choice, token_id)

    def flush(self) -> None:
        """Have the masks after the tokens pushed computed."""
        if self._begun:
            self._masks.flush()

    def end(self, request_id: RequestId, choice: int = -1) -> None:
        """A request, or one choice of it, has ended; unknown ones are ignored."""
        if choice >= 0:
            self._masks.end(request_id, choice)
            return
        for number in range(self._begun.pop(request_id, 0)):
            self._masks.end(request_id, number)

    def check(self) -> None:
        """Look after what takes too long, and publish the counts; called some times a second."""
        self._masks.check()
        self._grammars.trim()
        status, stats = self._status, self._stats
        status.set_gauge(TextGauge.TOOL_REQUESTS, stats.num_tool_requests)
        status.set_gauge(TextGauge.STRUCTURED_REQUESTS, stats.num_structured_requests)
        status.set_gauge(TextGauge.FORCED_REQUESTS, stats.num_forced_requests)
        status.set_gauge(TextGauge.FORCED_TOKENS, stats.num_forced_tokens)
        status.set_gauge(TextGauge.MASK_US, stats.total_us)
        for number, count in enumerate(stats.counts):
            status.set_gauge(TextGauge.FIRST_MASKS + number, count)


def _refuse_unchecked(output_format: OutputFormat | None) -> None:
    """Raises RequestError 400 for a form that nothing but a grammar holds an answer to."""
    if isinstance(output_format, RegexFormat | GrammarFormat):
        name = "regex" if isinstance(output_format, RegexFormat) else "grammar"
        message = f"{name}: this server has grammars switched off, and nothing else keeps an answer to one"
        raise RequestError(400, message, param=name, code="unsupported_response_format")
