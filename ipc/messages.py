"""Everything that crosses a process border, as plain frozen records.

Control edges (ZeroMQ, one inbox per process, msgpack):

    http -> text    Submit, Count, Detokenize, Abort
    text -> gpu     Generate, Abort
    supervisor -> * PeerUp, PeerDown, Drain, Reload

Stream edges (shared-memory rings; frames are described where they are packed):

    gpu -> text     token records and SequenceEvents      (ipc/token_frame.py)
    text -> http    lists of TextEvents, one frame a step (msgpack)

Records are decoded strictly: an unknown tag or a wrong type is a bug of ours and raises.
"""

from __future__ import annotations

import msgspec

from sparkinfer.request import CacheReport, OutputFormat, Prompt, Request, RequestId, ToolCallDelta, ToolPolicy
from sparkinfer.sampling_params import SamplingParams


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """http -> text: render, tokenise, generate, and stream TextEvents back to http worker `reply_to`."""

    request: Request
    reply_to: int
    generation: int                   # of that http worker: ZeroMQ may deliver this after the worker's PeerDown


class Count(msgspec.Struct, frozen=True, tag="count"):
    """http -> text: render and tokenise only; answered by one Tokenized."""

    request_id: RequestId
    prompt: Prompt
    reply_to: int
    with_text: bool = False           # the rendered prompt comes back too
    with_pieces: bool = False         # and the bytes of each token
    tool_policy: ToolPolicy = ToolPolicy()     # these two change what the prompt says
    output_format: OutputFormat | None = None


class Detokenize(msgspec.Struct, frozen=True, tag="detokenize"):
    """http -> text: the text of `token_ids`, all of them in the vocabulary; answered by one Tokenized."""

    request_id: RequestId
    token_ids: tuple[int, ...]
    reply_to: int
    skip_special: bool


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop working on a request, or on one choice of it; unknown ids are ignored. Travels http -> text -> gpu."""

    request_id: RequestId
    choice: int = -1                  # -1: all of them


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate", omit_defaults=True):
    """text -> gpu: `n` sequences over one prompt. Token records go to text worker `reply_to`."""

    request_id: RequestId
    reply_to: int
    generation: int                   # of that text worker
    prompt_token_ids: bytes           # int32, little-endian
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    client_id: int = 0
    turn_starts: list[int] = []       # positions in the prompt where a turn begins, ascending
    uses_cache: bool = True
    explain_cache: bool = False
    mask_rows: list[int] = []         # per choice, its row in the mask table; empty: unconstrained
    sent_at: float                    # CLOCK_MONOTONIC in seconds, one for all processes; times count from here


class PeerUp(msgspec.Struct, frozen=True, tag="peer_up"):
    """supervisor -> *: worker `name` is READY; its inbox is endpoints.inbox(run_dir, name, generation)."""

    name: str
    generation: int


class PeerDown(msgspec.Struct, frozen=True, tag="peer_down"):
    """supervisor -> *: worker `name` of `generation` is gone; whatever it held is lost."""

    name: str
    generation: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """supervisor -> http: refuse new requests, finish the open ones, then exit 0.

    After grace_s seconds (0: never) what is still open ends with an error and the worker exits all the same.
    """

    grace_s: float


class Reload(msgspec.Struct, frozen=True, tag="reload"):
    """supervisor -> http: read again what may change while the service runs (the file of API keys)."""


HttpInbox = PeerUp | PeerDown | Drain | Reload
TextInbox = Submit | Count | Detokenize | Abort | PeerUp | PeerDown
GpuInbox = Generate | Abort | PeerUp | PeerDown


class SequenceQueued(msgspec.Struct, frozen=True, tag="queued", array_like=True):
    """gpu -> text: the request passed admission and waits or runs."""

    request_id: RequestId


class SequenceFinished(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """gpu -> text: the one and only end of one sequence (choice). After an error no further record follows."""

    request_id: RequestId
    choice: int
    finish_reason: int                # FinishReason
    num_cached_tokens: int
    ttft_ms: float                    # Generate.sent_at -> first token sampled
    generation_ms: float              # Generate.sent_at -> end
    status: int = 0                   # HTTP status when finish_reason is ERROR, else 0
    code: str | None = None
    message: str | None = None
    queue_ms: float = 0.0             # Generate.sent_at -> first step
    cache: CacheReport | None = None  # when the request asked for it


SequenceEvent = SequenceQueued | SequenceFinished


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token with its natural-log probability and alternatives, best first."""

    token_id: int
    token: bytes                      # exact bytes, may be a part of a UTF-8 character
    logprob: float | None             # None: a prompt's first token, which nothing predicts
    top: list[tuple[int, bytes, float]]
    in_text: bool = True              # False: the text leaves the token out, as it does with control tokens


class Started(msgspec.Struct, frozen=True, tag="started", array_like=True):
    """text -> http: accepted by the scheduler; headers may go out. `echo` is the prompt's text when asked for."""

    request_id: RequestId
    num_prompt_tokens: int
    echo: str = ""


class Delta(msgspec.Struct, frozen=True, tag="delta", array_like=True):
    """text -> http: new text of one choice. num_tokens counts the tokens consumed since the last Delta.

    A prompt that is scored comes first, in deltas of no generated tokens.
    """

    request_id: RequestId
    choice: int
    content: str
    reasoning: str
    num_tokens: int
    logprobs: list[TokenLogprob] | None = None
    tool_calls: list[ToolCallDelta] = []


class Finished(msgspec.Struct, frozen=True, tag="finish", array_like=True):
    """text -> http: the last event of one choice. num_tokens is the choice's completion token count."""

    request_id: RequestId
    choice: int
    finish_reason: int                # FinishReason
    num_tokens: int
    num_reasoning_tokens: int
    num_cached_tokens: int
    ttft_ms: float
    generation_ms: float
    stop_string: str | None = None    # the stop string that matched, if one did
    queue_ms: float = 0.0
    cache: CacheReport | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """text -> http: the last event of the whole request, in place of every Finished still missing."""

    request_id: RequestId
    status: int
    message: str
    param: str | None = None
    code: str | None = None
    details: dict[str, int] = {}      # as RequestError's


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized", array_like=True):
    """text -> http: answer to Count and Detokenize; text and pieces where they were asked for."""

    request_id: RequestId
    token_ids: list[int]
    text: str = ""
    pieces: list[bytes] = []


TextEvent = Started | Delta | Finished | Failed | Tokenized
