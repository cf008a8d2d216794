"""Renders a conversation with the model's own chat template. Knows messages and Jinja; never token ids.

Rules where templates and clients disagree:

* Special tokens in a client's strings are plain text (special_text.py); the template sees them with a sentinel inside,
  so they cannot pass for its own markers either. The one exception is a reasoning block at the head of an assistant
  message without a reasoning field: if the template takes such a block apart, it is given the tags as they are.
* A system message after the first position, where the template refuses it: in ChatML templates it becomes a system
  turn in its place; in others it is put before the next user message, or after the last one if none follows. The
  messages before it render as they would without it, so a cached prefix stays valid.
* A file without a template: ChatML if the vocabulary has its tokens, else 400.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template

from sparkinfer.checkpoint.metadata import MetadataReader
from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt, Message
from sparkinfer.text.special_text import RenderedPrompt, choose_sentinels
from sparkinfer.text.template_messages import template_messages
from sparkinfer.text.template_sandbox import COMPILE_ERRORS, TEMPLATE_ERRORS, TemplateSandbox
from sparkinfer.text.tokenizer import Tokenizer, without_lone_surrogates

logger = logging.getLogger("sparkinfer.text")

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SANDBOX = TemplateSandbox()
_THINK, _END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class _Marks:
    """Characters that occur in no string of the prompt: one breaks special tokens, one marks places."""

    sentinel: str
    place: str


class ChatTemplate:
    """One compiled template; `render` may be called from several threads at once."""

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        """source: the Jinja template, None if the model has none. A template that does not parse refuses chats."""
        self._special_text = tokenizer.special_text
        self._structural = tokenizer.vocabulary.structural_ids
        options = tokenizer.options
        texts = {
            "bos_token": tokenizer.token_text(options.bos_token_id),
            "eos_token": tokenizer.token_text(options.eos_token_id),
        }
        self._token_texts = {name: text for name, text in texts.items() if text is not None}
        if source is None and IM_START in self._structural and IM_END in self._structural:
            logger.warning("the model has no chat template: ChatML is used")
            source = _CHATML
        self.source = source
        self._template, self._refusal = _compile(source)

    @classmethod
    def from_metadata(
        cls, metadata: dict[str, Any], tokenizer: Tokenizer, path: Path = Path("GGUF file")
    ) -> ChatTemplate:
        """Raises CheckpointError for a template that is no text."""
        reader = MetadataReader(metadata, path)
        return cls(reader.text("tokenizer.chat_template", "") or None, tokenizer)

    def render(self, prompt: ChatPrompt) -> RenderedPrompt:
        """The prompt's text with the template's special tokens marked.

        Raises RequestError 400 (param "messages") with the template's own message when it refuses the conversation,
        fails on it, or exceeds the sandbox's limits.
        """
        messages = template_messages(prompt.messages, self.source or "")
        tools = [json.loads(tool.definition) for tool in prompt.tools]
        sentinel, place = choose_sentinels(2, [messages, tools, prompt.template_kwargs, self.source])
        marks = _Marks(sentinel, place)
        variables = {
            "documents": None,
            **self._special_text.shield(dict(prompt.template_kwargs), sentinel),
            **self._token_texts,
            "tools": self._special_text.shield(tools, sentinel) or None,
            "add_generation_prompt": prompt.add_generation_prompt and not prompt.continue_final_message,
        }
        shielded = [self._shield(message, sentinel) for message in messages]
        rendered = self._render_shielded(shielded, variables, marks, prompt)
        blocks = [i for i, message in enumerate(messages) if _has_reasoning_block(message)]
        if not blocks:
            return rendered
        for i in blocks:
            shielded[i]["content"] = self._open_reasoning_block(messages[i]["content"], sentinel)
        opened = self._render_shielded(shielded, variables, marks, prompt)
        return opened if opened.text != rendered.text else rendered

    def _render_shielded(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], marks: _Marks, prompt: ChatPrompt
    ) -> RenderedPrompt:
        if prompt.continue_final_message:
            messages = _mark_continuation(messages, prompt, marks.place)
        text = self._render_with_late_system(messages, variables, marks)
        if prompt.continue_final_message:
            text = _cut_continuation(text, marks.place, prompt.messages[-1].content or "")
        return self._special_text.unshield(text, marks.sentinel)

    def _shield(self, message: dict[str, Any], sentinel: str) -> dict[str, Any]:
        shield = self._special_text.shield
        return {key: value if key == "role" else shield(value, sentinel) for key, value in message.items()}

    def _open_reasoning_block(self, content: str, sentinel: str) -> str:
        """The shielded content, but for the tags of the reasoning block at its head."""
        before, end_tag, answer = content.partition(_END_THINK)
        lead, tag, inner = before.rpartition(_THINK)
        inner, answer = (str(self._special_text.shield(text, sentinel)) for text in (inner, answer))
        return lead + tag + inner + end_tag + answer

    def _render_with_late_system(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], marks: _Marks
    ) -> str:
        late = [i for i, message in enumerate(messages) if message["role"] == "system" and i > 0]
        try:
            return self._render(messages, variables)
        except RequestError:
            if not late:
                raise
        if IM_START in (self.source or "") and IM_END in (self.source or ""):
            return self._render_chatml_with_late_system(messages, late, variables, marks)
        return self._render(_fold_late_system(messages), variables)

    def _render_chatml_with_late_system(
        self, messages: list[dict[str, Any]], late: list[int], variables: dict[str, Any], marks: _Marks
    ) -> str:
        """Render an assistant turn in each late system message's place, then write the system turn over it.

        An assistant turn is the one kind that changes nothing around it: a user turn would move the point up to which
        templates drop old reasoning.
        """
        stand_ins = list(messages)
        for i in late:
            stand_ins[i] = {"role": "assistant", "content": f" {marks.place}{i}{marks.place} "}
        text = self._render(stand_ins, variables)
        for i in late:
            tag = f"{marks.place}{i}{marks.place}"
            at = text.find(tag)
            start, end = text.rfind(IM_START, 0, at), text.find(IM_END, at)
            if at < 0 or start < 0 or end < 0:
                raise RequestError(400, "The chat template allows no system message here.", param=f"messages[{i}]")
            is_trimmed = text[at + len(tag)] != " "
            content = messages[i]["content"].strip() if is_trimmed else messages[i]["content"]
            text = f"{text[:start]}{IM_START}system\n{content}{text[end:]}"
        return text

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        if self._template is None:
            raise RequestError(400, self._refusal, param="messages")
        try:
            return _SANDBOX.render(self._template, variables | {"messages": messages})
        except TEMPLATE_ERRORS as error:
            reason = str(error) or type(error).__name__
            message = f"The chat template refuses the messages: {without_lone_surrogates(reason)}"
            raise RequestError(400, message, param="messages") from error


def _compile(source: str | None) -> tuple[Template | None, str]:
    """The template, or None and the reason for which chats are refused."""
    if source is None:
        return None, "This model has no chat template; use the completions API with a prompt."
    try:
        return _SANDBOX.compile_template(source), ""
    except COMPILE_ERRORS as error:
        reason = str(error) or type(error).__name__
        logger.error("the model's chat template does not parse, chats will be refused: %s", reason)
        return None, f"This model's chat template does not parse: {without_lone_surrogates(reason)}"


def _has_reasoning_block(message: dict[str, Any]) -> bool:
    if message["role"] != "assistant" or "reasoning_content" in message:
        return False
    before, end_tag, _ = message["content"].partition(_END_THINK)
    return bool(end_tag) and not before.rpartition(_THINK)[0].strip()


def _fold_late_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Late system messages joined to the user message that follows them, or to the last one before them."""
    folded: list[dict[str, Any]] = []
    waiting: list[str] = []
    for i, message in enumerate(messages):
        if message["role"] == "system" and i > 0:
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            folded.append(message | {"content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            folded.append(message)
    if waiting:
        last_user = next((i for i in range(len(folded) - 1, -1, -1) if folded[i]["role"] == "user"), None)
        if last_user is None:
            folded.append({"role": "user", "content": "\n\n".join(waiting)})
        else:
            folded[last_user] |= {"content": "\n\n".join([folded[last_user]["content"], *waiting])}
    return folded


def _mark_continuation(messages: list[dict[str, Any]], prompt: ChatPrompt, place: str) -> list[dict[str, Any]]:
    last: Sequence[Message] = prompt.messages[-1:]
    if not last or last[0].role != "assistant" or last[0].tool_calls:
        raise RequestError(
            400, "continue_final_message needs an assistant message without tool calls at the end.", param="messages"
        )
    return [*messages[:-1], messages[-1] | {"content": f"{messages[-1]['content']}{place}end "}]


def _cut_continuation(text: str, place: str, content: str) -> str:
    """The prompt up to the end of the last message, whose trailing whitespace goes if the template trims.

    content: the message's own text; blank lines that the template wrote before an empty one stay
    """
    before, mark, after = text.rpartition(f"{place}end")
    if not mark:
        raise RequestError(400, "The chat template does not show the last message.", param="messages")
    answer = content.rpartition(_END_THINK)[2]
    if after.startswith(" ") or not answer.strip():
        return before
    return before.removesuffix(answer[len(answer.rstrip()):])
