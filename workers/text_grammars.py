"""The text worker's compiled grammars: built by helper processes with a deadline, compiled on a thread, then kept.

Owns the helpers; never rows, masks or requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
from llguidance import LLTokenizer

from sparkinfer.config import GrammarConfig
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar, GrammarCache
from sparkinfer.grammar.grammar_spec import CallCheck, GrammarSpec
from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import grammar_tokenizer
from sparkinfer.text.tokenizer import Tokenizer
from workers.builder_pool import BuilderDiedError, BuilderPool, IsWanted
from workers.grammar_frame import Built, Refused, Working

NUM_QUICK, NUM_SLOW = 2, 1   # builders
QUICK_S = 0.3                # what takes longer starts anew in a line of its kind, so that it holds up no other
MAX_SLOW = 16                # in that line
MAX_REMEMBERED = 512         # refusals


class Grammars:
    """Used on the worker's event loop."""

    def __init__(self, tokenizer: Tokenizer, config: GrammarConfig) -> None:
        self._config = config
        self._cache = GrammarCache(config.cache_mib << 20)
        self._encoder = msgspec.msgpack.Encoder()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = tokenizer
        self._grammar_tokenizer: Future[LLTokenizer] | None = None
        self._quick, self._slow = BuilderPool(NUM_QUICK), BuilderPool(NUM_SLOW)
        self._refusals: OrderedDict[bytes, RequestError] = OrderedDict()

    async def start(self) -> None:
        """Prepare what takes a second or two, so that the first request need not wait for it."""
        self._tokenizer_being_made()
        await self._quick.start_one()

    async def compiled(self, spec: GrammarSpec, is_wanted: IsWanted) -> CompiledGrammar:
        """The grammar of answers to `spec`. Raises RequestError: 400 for one that is wrong or too complex.

        is_wanted: asked before each piece of work
        """
        key = self._encode(spec, "tools and response_format together")
        grammar = self._cache.get(key)
        if grammar is None:
            built = await self._build(key, is_wanted)
            loop = asyncio.get_running_loop()
            tokenizer = self._tokenizer_being_made()
            grammar = await loop.run_in_executor(self._executor, self._compile, built, tokenizer)
            self._cache.put(key, grammar)
        return grammar

    def trim(self) -> None:
        """Let go of grammars that have grown too large or failed."""
        self._cache.trim()

    async def check(self, calls: CallCheck, is_wanted: IsWanted) -> None:
        """Raises RequestError 400 for calls of earlier turns that the functions do not take."""
        await self._build(self._encoder.encode(calls), is_wanted)

    def _encode(self, spec: GrammarSpec, what: str) -> bytes:
        key = self._encoder.encode(spec)
        if len(key) > self._config.max_schema_kib << 10:
            limit = self._config.max_schema_kib
            raise RequestError(400, f"{what} may have {limit} KiB, not {len(key) >> 10}", code="schema_too_large")
        return key

    async def _build(self, job: bytes, is_wanted: IsWanted) -> OutputGrammar:
        digest = hashlib.blake2b(job, digest_size=16).digest()
        if digest in self._refusals:
            self._refusals.move_to_end(digest)
            raise self._refusals[digest].with_traceback(None)
        try:
            reply = await self._reply(job, is_wanted)
        except BuilderDiedError as error:
            raise RequestError(500, "the schema could not be compiled", code="grammar_failed") from error
        if isinstance(reply, Built):
            return OutputGrammar(reply.lark, reply.approximations)
        refusal = self._refusal(reply)
        self._refusals[digest] = refusal
        if len(self._refusals) > MAX_REMEMBERED:
            self._refusals.popitem(last=False)
        raise refusal

    async def _reply(self, job: bytes, is_wanted: IsWanted) -> Built | Refused | Working | None:
        limit = self._config.compile_timeout_s
        reply = await self._quick.run(job, min(QUICK_S, limit), is_wanted)
        if isinstance(reply, Built | Refused) or limit <= QUICK_S:
            return reply
        if self._slow.num_waiting >= MAX_SLOW:
            raise RequestError(503, "too many complex schemas are being compiled; try again", code="overloaded")
        return await self._slow.run(job, limit, is_wanted)

    def _refusal(self, reply: Refused | Working | None) -> RequestError:
        if isinstance(reply, Refused):
            return RequestError(reply.status, reply.message, param=reply.param, code=reply.code)
        path, seconds = reply.path if reply is not None else None, self._config.compile_timeout_s
        message = f"{path or 'the schema'}: takes longer than {seconds:g} s to compile"
        return RequestError(400, message, param=path, code="schema_too_complex")

    def _tokenizer_being_made(self) -> Future[LLTokenizer]:
        if self._grammar_tokenizer is None:
            self._grammar_tokenizer = self._executor.submit(grammar_tokenizer, self._tokenizer)
        return self._grammar_tokenizer

    def _compile(self, built: OutputGrammar, tokenizer: Future[LLTokenizer]) -> CompiledGrammar:
        """On the grammar thread, which makes the tokenizer first."""
        try:
            start = Matcher.compile(built, tokenizer.result())
        except GrammarError as error:
            raise RequestError(400, f"the grammar cannot be compiled: {error}", code="invalid_grammar") from error
        return CompiledGrammar(start, built.approximations, len(built.lark))
