"""The text worker's compiled grammars: built by helper processes with a deadline, compiled on a thread, then kept.

Owns the helpers; never rows, masks or requests.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sparkinfer.config import GrammarConfig
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar, GrammarCache
from sparkinfer.grammar.grammar_spec import CallCheck, GrammarSpec
from sparkinfer.grammar.matcher import GrammarError
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.vocabulary import GrammarVocabulary
from sparkinfer.text.tokenizer import Tokenizer
from workers.builder_pool import BuilderDiedError, BuilderPool, TooDearError
from workers.grammar_frame import Built, Refused, Working
from workers.known_calls import KnownCalls
from workers.shared_work import IsWanted, NobodyWaitsError, SharedWork

MAX_REMEMBERED = 512         # refusals

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asker:
    """The request that wants a grammar."""

    client_id: int
    is_open: IsWanted


class Grammars:
    """Used on the worker's event loop."""

    def __init__(self, tokenizer: Tokenizer, config: GrammarConfig) -> None:
        self._config = config
        self._cache = GrammarCache(config.cache_mib << 20)
        self._encoder = msgspec.msgpack.Encoder()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = tokenizer
        self._vocabulary: Future[GrammarVocabulary] | None = None
        self._pool = BuilderPool(config.compile_timeout_s)
        self._compilations: SharedWork[CompiledGrammar] = SharedWork()
        self._checks: SharedWork[OutputGrammar] = SharedWork()
        self._known_calls = KnownCalls()
        self._refusals: OrderedDict[bytes, RequestError] = OrderedDict()

    async def start(self) -> None:
        """Prepare what takes a second or two, so that the first request need not wait for it."""
        self._vocabulary_being_made()
        await self._pool.start_one()

    async def compiled(self, spec: GrammarSpec, asker: Asker) -> CompiledGrammar:
        """The grammar of answers to `spec`. Raises RequestError: 400 for one that is wrong or too complex."""
        key = self._encode(spec, "tools and response_format together")
        grammar = self._cache.get(key)
        if grammar is None:
            grammar = await self._once(self._compilations, key, asker, self._compile)
        return grammar

    def trim(self) -> None:
        """Let go of grammars that have grown too large or failed."""
        self._cache.trim()

    async def check(self, calls: CallCheck, asker: Asker) -> None:
        """Raises RequestError 400 for calls of earlier turns that the functions do not take."""
        others = self._known_calls.others(calls)
        if others is not None:
            await self._once(self._checks, self._encoder.encode(others), asker, self._build)
            self._known_calls.add(others)

    async def _once(
        self, shared: SharedWork[T], job: bytes, asker: Asker,
        work: Callable[[bytes, int, IsWanted], Coroutine[None, None, T]],
    ) -> T:  # fmt: skip
        try:
            return await shared.once(job, asker.is_open, functools.partial(work, job, asker.client_id))
        except NobodyWaitsError as error:
            raise RequestError(499, "the client is gone") from error

    def _encode(self, spec: GrammarSpec, what: str) -> bytes:
        key = self._encoder.encode(spec)
        if len(key) > self._config.max_schema_kib << 10:
            limit = self._config.max_schema_kib
            raise RequestError(400, f"{what} may have {limit} KiB, not {len(key) >> 10}", code="schema_too_large")
        return key

    async def _build(self, job: bytes, client_id: int, is_wanted: IsWanted) -> OutputGrammar:
        digest = hashlib.blake2b(job, digest_size=16).digest()
        if digest in self._refusals:
            self._refusals.move_to_end(digest)
            raise self._refusals[digest].with_traceback(None)
        try:
            reply = await self._pool.run(job, client_id, is_wanted)
        except BuilderDiedError as error:
            raise RequestError(500, "the schema could not be compiled", code="grammar_failed") from error
        except TooDearError as error:
            raise self._refusal(error.working_on) from None  # another time there may be room for it
        if isinstance(reply, Built):
            return OutputGrammar(reply.lark, reply.approximations, reply.free_text)
        refusal = self._refusal(reply)
        self._refusals[digest] = refusal
        if len(self._refusals) > MAX_REMEMBERED:
            self._refusals.popitem(last=False)
        raise refusal

    def _refusal(self, reply: Refused | Working | None) -> RequestError:
        if isinstance(reply, Refused):
            return RequestError(reply.status, reply.message, param=reply.param, code=reply.code)
        path, seconds = reply.path if reply is not None else None, self._config.compile_timeout_s
        message = f"{path or 'the schema'}: takes longer than {seconds:g} s to compile"
        return RequestError(400, message, param=path, code="schema_too_complex")

    def _vocabulary_being_made(self) -> Future[GrammarVocabulary]:
        if self._vocabulary is None:
            self._vocabulary = self._executor.submit(GrammarVocabulary, self._tokenizer)
        return self._vocabulary

    async def _compile(self, job: bytes, client_id: int, is_wanted: IsWanted) -> CompiledGrammar:
        built = await self._build(job, client_id, is_wanted)
        vocabulary = self._vocabulary_being_made()
        grammar = await asyncio.get_running_loop().run_in_executor(self._executor, _compiled, built, vocabulary)
        self._cache.put(job, grammar)
        return grammar


def _compiled(built: OutputGrammar, vocabulary: Future[GrammarVocabulary]) -> CompiledGrammar:
    """On the grammar thread, which makes the vocabulary first."""
    try:
        start = vocabulary.result().compiled(built)
    except GrammarError as error:
        raise RequestError(400, f"the grammar cannot be compiled: {error}", code="invalid_grammar") from error
    return CompiledGrammar(start, built.approximations, len(built.lark))
