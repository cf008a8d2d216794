"""One conversation model for every API surface, and the Request that carries it.

Surfaces translate to and from these records; the text pool renders them. Knows no wire format of any API.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal, NewType

import msgspec

from sparkinfer.sampling_params import SamplingParams

RequestId = NewType("RequestId", int)  # 64 bits, unique per supervisor run; assigned by the http worker


class FinishReason(IntEnum):
    """Why a sequence ended; the public names are the surfaces' business."""

    STOP = 1    # a stop token or a stop string
    LENGTH = 2  # max_tokens, or the context is full
    ABORT = 3   # cancelled by the client or by a deadline
    ERROR = 4   # something of ours failed
    TOOL_CALLS = 5  # STOP, after at least one call; the text worker tells it apart, the engine never says it


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function call in an assistant message; arguments are the JSON text as the client sent it."""

    id: str
    name: str
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True):
    """A growing call of an answer: `id` and `name` come with its first delta alone, `arguments` piece by piece."""

    index: int                        # of the call within its choice, from 0
    id: str = ""
    name: str = ""
    arguments: str = ""               # the next characters of the JSON text of its arguments


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that the model may call."""

    name: str
    definition: str                   # JSON: {"type": "function", "function": {...}}, keys in the client's order
    parameters: str = "{}"            # JSON Schema of the arguments, an object
    strict: bool = False


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which calls an answer may, or must, make. Without tools in the prompt it says nothing."""

    choice: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] = ()     # names; empty: every tool of the prompt
    parallel: bool = True             # more than one call in an answer


class JsonObjectFormat(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that validates. `schema` is JSON text: its numbers may exceed what msgpack holds."""

    schema: str
    name: str = ""
    strict: bool = False


class RegexFormat(msgspec.Struct, frozen=True, tag="regex"):
    """Text that matches the whole pattern."""

    pattern: str


class GrammarFormat(msgspec.Struct, frozen=True, tag="grammar"):
    """Text of a context-free grammar, in Lark's notation."""

    grammar: str


class ChoiceFormat(msgspec.Struct, frozen=True, tag="choice"):
    """One of these texts."""

    choices: tuple[str, ...]


OutputFormat = JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | ChoiceFormat


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn. Text parts of the client's message are already joined into `content`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    reasoning: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat", omit_defaults=True):
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_kwargs: dict[str, Any] = {}             # enable_thinking, reasoning_effort, preserve_thinking, ...
    add_generation_prompt: bool = True
    continue_final_message: bool = False             # the last assistant message is a prefix to be continued
    checks_earlier_calls: bool = True                # calls of earlier turns must be ones that the tools of now take


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Raw text: no template, no special tokens parsed; BOS/EOS as the model's metadata says."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids used as they are."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class Continuation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is scored as if the model had said it after the prompt: plain text, or token ids."""

    text: str = ""
    token_ids: tuple[int, ...] = ()   # in place of text
    max_tokens: int                   # a longer one is refused


class CacheReport(msgspec.Struct, frozen=True):
    """How much of a prompt was reused, and why no more; for clients that ask.

    reason:  "whole_prompt"        all but the last block, which must be computed to answer at all
             "diverged"            something else was cached from token diverged_at on
             "not_cached_further"  nothing was cached from there on
             "nothing_cached"      nothing of this beginning, under this key's salt
             "evicted"             it was there and had to make room
             "no_checkpoint"       a hybrid model: the blocks are there, a state to go on from only at cached_tokens
             "below_minimum"       a hybrid model: the prompt is shorter than min_tokens
             "opted_out", "disabled"
    """

    reason: str
    cached_tokens: int = 0
    matched_tokens: int = 0           # tokens equal to cached ones, full blocks or not
    diverged_at: int | None = None    # position of the first token that differs from what was cached there


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client asked for, independent of the API it used."""

    request_id: RequestId
    prompt: Prompt
    sampling: SamplingParams
    n: int = 1                        # choices, 1..8
    stop: tuple[str, ...] = ()        # stop strings, matched on content after detokenisation, removed from it
    echo: bool = False                # completions: the prompt's text comes first
    priority: int = 0                 # smaller is sooner
    client_id: int = 0                # whose fair share it is: a number per API key, 0 without keys
    uses_cache: bool = True           # its prefix may come from others, and others may have it
    explain_cache: bool = False       # the usage says how much of the prompt was reused, and why no more
    tool_policy: ToolPolicy = ToolPolicy()
    output_format: OutputFormat | None = None  # of the content; None: free text
    continuation: Continuation | None = None  # with sampling.prompt_logprobs: it is scored, and not the prompt
