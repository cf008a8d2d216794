"""POST /v1/score: body to a Request that generates nothing. Knows neither the answer's shape nor any process."""

from __future__ import annotations

from sparkinfer.api.chat import parse_chat_prompt
from sparkinfer.api.completions import MAX_PROMPTS, parse_prompts
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.response_format import read_output_format
from sparkinfer.api.sampling import read_priority, read_token_ids
from sparkinfer.api.schema import Object, as_list, as_str, fail, read_bool, read_int, read_str
from sparkinfer.api.template_kwargs import read_thinking
from sparkinfer.api.tools import read_tool_policy
from sparkinfer.request import Continuation, Prompt, Request, ToolPolicy
from sparkinfer.sampling_params import SamplingParams


def parse_score(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """The scoring that `body` asks for; RequestError(400) names the field that is wrong.

    Exactly one of messages and prompt; exactly one of completion, completion_token_ids and `"prompt_only": true`.
    Lists of completions, or of lists of ids, are scored one by one behind the same prompt. Never cached, so that the
    numbers depend on nobody else's request.
    """
    for key in ("user", "model"):
        read_str(body, key)
    if read_bool(body, "stream", False):
        fail("stream", "is not supported here: scores come whole")
    has_messages, has_prompt = (body.get(key) is not None for key in ("messages", "prompt"))
    if has_messages == has_prompt:
        fail("prompt", "exactly one of messages and prompt must be given")
    prompt: Prompt
    tool_policy, output_format = ToolPolicy(), None
    if has_messages:
        prompt = parse_chat_prompt(body, read_thinking(body))
        tool_policy, output_format = read_tool_policy(body, prompt.tools), read_output_format(body)
    else:
        prompt = _read_prompt(body, info)
    num_top = read_int(body, "top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    priority = read_priority(body)
    requests = tuple(
        Request(
            request_id=new_request_id(),
            prompt=prompt,
            sampling=SamplingParams(max_tokens=0, prompt_logprobs=num_top),
            priority=priority,
            uses_cache=False,
            tool_policy=tool_policy,
            output_format=output_format,
            continuation=continuation,
        )
        for continuation in _read_continuations(body, info)
    )
    return Generation(requests, stream=False, include_usage=True)


def is_batch(body: Object) -> bool:
    """Whether the answer is a list of scores; for a body that `parse_score` accepts."""
    ids = body.get("completion_token_ids") or [None]
    return isinstance(body.get("completion"), list) or isinstance(ids[0], list)


def _read_prompt(body: Object, info: ModelInfo) -> Prompt:
    """Raw text, or token ids."""
    value = body["prompt"]
    if isinstance(value, list) and not all(isinstance(item, int) for item in value):
        fail("prompt", "must be one prompt: a string, or token ids")
    return parse_prompts(value, info, min_output_tokens=0)[0]


def _read_continuations(body: Object, info: ModelInfo) -> list[Continuation | None]:
    text, ids = body.get("completion"), body.get("completion_token_ids")
    prompt_only = read_bool(body, "prompt_only", False)
    if (text is not None) + (ids is not None) + prompt_only != 1:
        fail("completion", 'exactly one of completion, completion_token_ids and "prompt_only": true must be given')
    if prompt_only:
        return [None]
    if text is not None:
        return [_of_text(item, path, info) for item, path in _items(text, "completion", str)]
    return [_of_ids(item, path, info) for item, path in _items(ids, "completion_token_ids", int)]


def _items(value: object, path: str, scalar: type) -> list[tuple[object, str]]:
    """What is to be scored, each with its place: `value` itself, or its items when it is a list of several."""
    if not isinstance(value, list) or (scalar is int and not (value and isinstance(value[0], list))):
        return [(value, path)]
    if not 1 <= len(value) <= MAX_PROMPTS:
        fail(path, f"must have 1 to {MAX_PROMPTS} items, got {len(value)}")
    return [(item, f"{path}[{i}]") for i, item in enumerate(value)]


def _of_text(value: object, path: str, info: ModelInfo) -> Continuation:
    text = as_str(value, path)
    if not text:
        fail(path, "must not be empty")
    return Continuation(text=text, max_tokens=info.max_output_tokens)


def _of_ids(value: object, path: str, info: ModelInfo) -> Continuation:
    token_ids = as_list(value, path)
    if not 1 <= len(token_ids) <= info.max_output_tokens:
        fail(path, f"must have 1 to {info.max_output_tokens} ids, got {len(token_ids)}")
    return Continuation(token_ids=read_token_ids(token_ids, info.vocab_size, path), max_tokens=info.max_output_tokens)
