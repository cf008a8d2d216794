"""POST /v1/score: body to a Request that generates nothing. Knows neither the answer's shape nor any process."""

from __future__ import annotations

from sparkinfer.api.chat import parse_chat_prompt
from sparkinfer.api.completions import parse_prompts
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.models import MAX_TOP_LOGPROBS, ModelInfo
from sparkinfer.api.response_format import read_output_format
from sparkinfer.api.sampling import read_priority, read_token_ids
from sparkinfer.api.schema import Object, as_list, fail, read_bool, read_int, read_str
from sparkinfer.api.template_kwargs import read_thinking
from sparkinfer.api.tools import read_tool_policy
from sparkinfer.request import Continuation, Prompt, Request, ToolPolicy
from sparkinfer.sampling_params import SamplingParams


def parse_score(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> Generation:
    """The scoring that `body` asks for; RequestError(400) names the field that is wrong.

    Exactly one of messages and prompt; exactly one of completion, completion_token_ids and `"prompt_only": true`.
    Never cached, so that the numbers depend on nobody else's request.
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
    request = Request(
        request_id=new_request_id(),
        prompt=prompt,
        sampling=SamplingParams(max_tokens=0, prompt_logprobs=num_top),
        priority=read_priority(body),
        uses_cache=False,
        tool_policy=tool_policy,
        output_format=output_format,
        continuation=_read_continuation(body, info),
    )
    return Generation((request,), stream=False, include_usage=True)


def _read_prompt(body: Object, info: ModelInfo) -> Prompt:
    """Raw text, or token ids."""
    value = body["prompt"]
    if isinstance(value, list) and not all(isinstance(item, int) for item in value):
        fail("prompt", "must be one prompt: a string, or token ids")
    return parse_prompts(value, info, min_output_tokens=0)[0]


def _read_continuation(body: Object, info: ModelInfo) -> Continuation | None:
    text, ids = body.get("completion"), body.get("completion_token_ids")
    prompt_only = read_bool(body, "prompt_only", False)
    if (text is not None) + (ids is not None) + prompt_only != 1:
        fail("completion", 'exactly one of completion, completion_token_ids and "prompt_only": true must be given')
    if text is not None and not read_str(body, "completion"):
        fail("completion", "must not be empty")
    if prompt_only:
        return None
    token_ids = () if ids is None else _read_ids(ids, info)
    return Continuation(text=text or "", token_ids=token_ids, max_tokens=info.max_output_tokens)


def _read_ids(value: object, info: ModelInfo) -> tuple[int, ...]:
    token_ids = as_list(value, "completion_token_ids")
    if not 1 <= len(token_ids) <= info.max_output_tokens:
        fail("completion_token_ids", f"must have 1 to {info.max_output_tokens} ids, got {len(token_ids)}")
    return read_token_ids(token_ids, info.vocab_size, "completion_token_ids")
