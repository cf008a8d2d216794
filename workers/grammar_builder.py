"""A text worker's helper: turns a client's schemas into the text of a grammar, in a process that can be killed.

Reads GrammarSpecs and CallChecks from standard input and answers each on standard output, one at a time. Knows
schemas; never tokens, masks or sequences.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec
import numpy as np
from llguidance import LLTokenizer

from ipc.peer_death import die_with_parent
from sparkinfer.engine.mask_source import WORD_BITS, lowest_allowed
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_spec import CallCheck, GrammarSpec
from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.earlier_calls import check_calls
from workers.grammar_frame import LENGTH, BuilderReply, Built, Refused, read_frame

MAX_MEMORY_BYTES = 4 << 30
NICENESS = 5
NUM_STEPS_TRIED = 8


def build(spec: GrammarSpec | CallCheck) -> BuilderReply:
    """The grammar of an answer, tried out on a vocabulary of bytes; or an empty one for calls that are right."""
    try:
        if isinstance(spec, CallCheck):
            check_calls(spec)
            return Built("", ())
        grammar = answer_grammar(spec)
        _try_out(grammar, byte_tokenizer(spec.special_tokens))
    except RequestError as error:
        return Refused(error.status, error.message, error.param, error.code)
    except GrammarError as error:
        return Refused(400, f"the grammar cannot be compiled: {error}", None, "invalid_grammar")
    except RecursionError:
        return Refused(400, "the schema is nested too deeply", None, "schema_too_complex")
    except MemoryError:
        return Refused(400, "the schema takes too much memory to compile", None, "schema_too_complex")
    return Built(grammar.lark, grammar.approximations)


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
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    decoder, encoder = msgspec.msgpack.Decoder(GrammarSpec | CallCheck), msgspec.msgpack.Encoder()
    sys.stdout.buffer.write(LENGTH.pack(0))
    sys.stdout.buffer.flush()
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        reply = encoder.encode(build(decoder.decode(frame)))
        sys.stdout.buffer.write(LENGTH.pack(len(reply)) + reply)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
