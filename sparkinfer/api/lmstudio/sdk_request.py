"""A prediction that an LM Studio SDK asks for: the channel's creation parameter to Request.

Knows neither the answer's messages (sdk_reply.py) nor the socket.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkinfer.api.field_names import FieldNames
from sparkinfer.api.generation import Generation, NewRequestId
from sparkinfer.api.lmstudio.sdk_documents import check_specifier
from sparkinfer.api.lmstudio.sdk_history import read_messages
from sparkinfer.api.lmstudio.sdk_settings import Settings, read_tools
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.sampling import read_sampling
from sparkinfer.api.schema import Object, as_object, fail, read_list, read_object
from sparkinfer.request import ChatPrompt, Message, Prompt, Request, TextPrompt, Tool

FIELD_NAMES = FieldNames(
    (r"response_format\.json_schema\.schema|structured\.schema", "structured.jsonSchema"),
    (r"tools\[(\d+)\]", r"tools.tools[\1]"),
    (r"messages(\[\d+\])?", "history"),
    (r"max_tokens", "maxPredictedTokens"),
    (r"repetition_penalty", "repeatPenalty"),
    (r"min_p", "minPSampling"),
    (r"top_k", "topKSampling"),
    (r"top_p", "topPSampling"),
)
DEFAULT_TAGS = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a channel asks for. reasoning_tags: around reasoning in its fragments, None where it is not told apart."""

    generation: Generation
    settings: Settings
    reasoning_tags: tuple[str, str] | None


def parse_prediction(parameter: Object, info: ModelInfo, new_request_id: NewRequestId) -> Prediction:
    """RequestError names the part that is wrong; unknown settings are ignored."""
    check_specifier(as_object(parameter.get("modelSpecifier"), "modelSpecifier"), info, "modelSpecifier")
    settings = _settings(parameter)
    tools, policy = settings.tools()
    tags = settings.reasoning_tags()
    messages = read_messages(as_object(parameter.get("history"), "history"), "history", tags or DEFAULT_TAGS)
    request = Request(
        request_id=new_request_id(),
        prompt=_prompt(messages, tools, is_plain_text=settings.is_plain_text),
        sampling=read_sampling(settings.sampling(), info, None),
        stop=settings.stop(),
        tool_policy=policy,
        output_format=settings.output_format(),
    )
    return Prediction(Generation((request,), True, True), settings, tags)


def parse_template_call(parameter: Object, info: ModelInfo) -> Prompt:
    """The prompt of applyPromptTemplate."""
    check_specifier(as_object(parameter.get("specifier"), "specifier"), info, "specifier")
    options = read_object(parameter, "opts") or {}
    tools = read_tools(read_list(options, "toolDefinitions", "opts") or [], "opts.toolDefinitions")
    settings = _settings(parameter)
    messages = read_messages(as_object(parameter.get("history"), "history"), "history", DEFAULT_TAGS)
    return _prompt(messages, tools or settings.tools()[0], is_plain_text=settings.is_plain_text)


def _settings(parameter: Object) -> Settings:
    return Settings(read_object(parameter, "predictionConfigStack") or {}, "predictionConfigStack")


def _prompt(messages: tuple[Message, ...], tools: tuple[Tool, ...], *, is_plain_text: bool) -> Prompt:
    if not is_plain_text:
        return ChatPrompt(messages=messages, tools=tools, checks_earlier_calls=False)
    text = "".join(message.content or "" for message in messages)
    if not text:
        fail("history", "must not be empty")
    return TextPrompt(text=text)
