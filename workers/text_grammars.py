"""The text worker's compiled grammars: built by helper processes with a deadline, compiled on a thread, then kept.

Owns the helpers; never rows, masks or requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

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
from workers.grammar_frame import LENGTH, BuilderReply, Refused, Working

log = logging.getLogger("text")

ROOT = Path(__file__).resolve().parent.parent
BUILDER_BOOT_TIMEOUT_S = 60.0
NUM_BUILDERS = 2  # so that a schema that takes its whole deadline does not hold up every other one


class Grammars:
    """Used on the worker's event loop."""

    def __init__(self, tokenizer: Tokenizer, config: GrammarConfig) -> None:
        self._config = config
        self._cache = GrammarCache(config.cache_mib << 20)
        self._encoder = msgspec.msgpack.Encoder()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = tokenizer
        self._grammar_tokenizer: Future[LLTokenizer] | None = None
        self._idle: asyncio.Queue[Builder] = asyncio.Queue()
        for _ in range(NUM_BUILDERS):
            self._idle.put_nowait(Builder())

    async def start(self) -> None:
        """Prepare what takes a second or two, so that the first request need not wait for it."""
        self._tokenizer_being_made()
        builder = await self._idle.get()
        await builder.start()
        self._idle.put_nowait(builder)

    async def compiled(self, spec: GrammarSpec) -> CompiledGrammar:
        """The grammar of answers to `spec`. Raises RequestError: 400 for one that is wrong or too complex."""
        key = self._encode(spec, "tools and response_format together")
        grammar = self._cache.get(key)
        if grammar is None:
            built = await self._build(key)
            loop = asyncio.get_running_loop()
            tokenizer = self._tokenizer_being_made()
            grammar = await loop.run_in_executor(self._executor, self._compile, built, tokenizer)
            self._cache.put(key, grammar)
        return grammar

    def trim(self) -> None:
        """Let go of grammars that have grown too large or failed."""
        self._cache.trim()

    async def check(self, calls: CallCheck) -> None:
        """Raises RequestError 400 for calls of earlier turns that the functions do not take."""
        await self._build(self._encoder.encode(calls))

    def _encode(self, spec: GrammarSpec, what: str) -> bytes:
        key = self._encoder.encode(spec)
        if len(key) > self._config.max_schema_kib << 10:
            limit = self._config.max_schema_kib
            raise RequestError(400, f"{what} may have {limit} KiB, not {len(key) >> 10}", code="schema_too_large")
        return key

    async def _build(self, key: bytes) -> OutputGrammar:
        builder = await self._idle.get()
        try:
            await asyncio.wait_for(builder.start(), BUILDER_BOOT_TIMEOUT_S)
            reply = await asyncio.wait_for(builder.build(key), self._config.compile_timeout_s)
        except TimeoutError:
            builder.kill()
            path, seconds = builder.working_on or "the schema", self._config.compile_timeout_s
            raise RequestError(
                400, f"{path}: takes longer than {seconds:g} s to compile", param=builder.working_on,
                code="schema_too_complex",
            ) from None  # fmt: skip
        except (OSError, EOFError, msgspec.DecodeError) as error:
            log.error("a grammar builder died: %s", error or type(error).__name__)
            builder.kill()
            raise RequestError(500, "the schema could not be compiled", code="grammar_failed") from error
        finally:
            self._idle.put_nowait(builder)
        if isinstance(reply, Refused):
            raise RequestError(reply.status, reply.message, param=reply.param, code=reply.code)
        return OutputGrammar(reply.lark, reply.approximations)

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


class Builder:
    """One helper process, started when it is first needed and again after its death."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._decoder = msgspec.msgpack.Decoder(BuilderReply | Working)
        self.working_on: str | None = None  # path of the part of the last request that was begun last

    async def build(self, spec: bytes) -> BuilderReply:
        """spec: a GrammarSpec or a CallCheck in msgpack. Raises OSError or EOFError when the process dies of it."""
        process = await self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(LENGTH.pack(len(spec)) + spec)
        await process.stdin.drain()
        self.working_on = None
        while True:
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            message: BuilderReply | Working = self._decoder.decode(await process.stdout.readexactly(length))
            if not isinstance(message, Working):
                return message
            self.working_on = message.path

    def kill(self) -> None:
        """End the process; a job that it has is lost."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    async def start(self) -> asyncio.subprocess.Process:
        """The process, ready for a job and alive as far as we know. Raises OSError or EOFError when it dies first."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "workers.grammar_builder", str(os.getpid()),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
            )  # fmt: skip
            assert self._process.stdout is not None
            await self._process.stdout.readexactly(LENGTH.size)
        return self._process
