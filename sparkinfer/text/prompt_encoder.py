"""From a Request to the token ids the engine runs: render, tokenise, check against the context.

Owned by the text worker, called from its encoding thread. Knows prompts; never sampling beyond its length limits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import CheckpointError, RequestError, context_length_error
from sparkinfer.grammar.grammar_spec import CallCheck, GrammarSpec
from sparkinfer.request import ChatPrompt, Continuation, OutputFormat, Prompt, Request, TextPrompt, ToolPolicy
from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.choice_stream import ReplyFormat, StreamOptions
from sparkinfer.text.earlier_calls import earlier_calls
from sparkinfer.text.reply_options import content_options
from sparkinfer.text.tokenizer import Tokenizer, without_lone_surrogates
from sparkinfer.text.tool_prompt import instructed
from sparkinfer.text.tool_protocols.protocol import tool_dialect

logger = logging.getLogger("sparkinfer.text")

_FREE = ToolPolicy()
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

# Tokens that open a turn, in the families of templates that have one.
TURN_OPENERS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>", "<|user|>", "<|assistant|>")


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt that fits: its ids, the room left for the answer, and how the answer becomes text."""

    token_ids: list[int]
    max_tokens: int                   # tokens the context has room for, >= 1 if any are wanted
    stream: StreamOptions
    turn_starts: list[int]            # positions where a turn of the conversation begins, ascending
    echo: str = ""                    # the prompt's text, when the request asks for it
    num_continued_tokens: int = 0     # of token_ids, at their end: they are scored, and count as the answer
    grammar_spec: GrammarSpec | None = None  # what the answer has to obey
    earlier_calls: CallCheck | None = None   # what has to be right about the prompt for that

    @property
    def scored_from(self) -> int:
        """Position of the first token that is scored, if any are: that of the continuation, or the prompt's first."""
        return len(self.token_ids) - self.num_continued_tokens if self.num_continued_tokens else 0


class PromptEncoder:
    """Template and tokenizer of the served model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, tool_protocol: str = "auto") -> None:
        """tool_protocol: [model] tool_protocol."""
        self.dialect = tool_dialect(template.source, tool_protocol)
        self.tokenizer = tokenizer
        self._template = template
        self._reply_format = _reply_format(tokenizer)
        structural = tokenizer.vocabulary.structural_ids
        self._special_tokens = tuple(sorted(structural))
        # no token stands for more characters than it has bytes; NFC may join two of the text's into one
        self._longest_token = 2 * max(1, *(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)))
        self._turn_openers = frozenset(structural[text] for text in TURN_OPENERS if text in structural)

    @classmethod
    def from_gguf(
        cls, gguf: GGUFFile, tokenizer_file: Path | None = None, tool_protocol: str = "auto"
    ) -> PromptEncoder:
        """From the file's own metadata, or with the tokenizer.json given instead. Raises CheckpointError."""
        if tokenizer_file is not None:
            tokenizer = Tokenizer.from_file(tokenizer_file, gguf.metadata, gguf.path)
            _check_vocab_size(tokenizer, tokenizer_file, gguf)
        else:
            tokenizer = Tokenizer.from_metadata(gguf.metadata, gguf.path)
        return cls(tokenizer, ChatTemplate.from_metadata(gguf.metadata, tokenizer, gguf.path), tool_protocol)

    def encode_request(self, request: Request, max_model_len: int) -> EncodedPrompt:
        """Encode the prompt of `request` for a context of `max_model_len` tokens.

        Raises RequestError 400: template errors, unknown ids, an empty prompt, a prompt longer than the context.
        """
        prompt = self._instructed(request.prompt, request.tool_policy, request.output_format)
        token_ids, text = self._encode(prompt, max_model_len)
        if not token_ids:
            raise RequestError(400, "the prompt is empty", param=_field(request.prompt))
        continued = self._continuation(request.continuation, max_model_len) if request.continuation else []
        self._check_fits(request, len(token_ids), len(continued), max_model_len)
        reply_format = self._reply_format if isinstance(request.prompt, ChatPrompt) else ReplyFormat.PLAIN
        starts_in_reasoning = reply_format is ReplyFormat.THINK and text.rstrip().endswith(THINK_OPEN)
        content = content_options(request, self.dialect.protocol)
        stream = StreamOptions(content, reply_format, starts_in_reasoning)
        has_echo = request.echo and request.sampling.prompt_logprobs is None  # else it comes with them
        echo = (text or self.tokenizer.decode(token_ids)) if has_echo else ""
        openers = self._turn_openers
        turn_starts = [position for position, token_id in enumerate(token_ids) if token_id in openers]
        token_ids += continued
        return EncodedPrompt(
            token_ids, max_model_len - len(token_ids), stream, turn_starts, echo, len(continued),
            self._grammar_spec(request, stream, text), earlier_calls(request.prompt),
        )  # fmt: skip

    def _grammar_spec(self, request: Request, stream: StreamOptions, text: str) -> GrammarSpec | None:
        """text: the prompt's, which may have closed the section of reasoning already."""
        offer = stream.content.offer
        if (request.output_format is None and offer is None) or not request.sampling.max_tokens:
            return None
        prompt = request.prompt
        is_muse = stream.reply_format is ReplyFormat.SEGMENTS
        return GrammarSpec(
            special_tokens=self._special_tokens,
            protocol=self.dialect.protocol if offer is not None or is_muse else "",
            can_reason=stream.reply_format is ReplyFormat.THINK and not text.rstrip().endswith(THINK_CLOSE),
            starts_in_reasoning=stream.starts_in_reasoning,
            tools=prompt.tools if isinstance(prompt, ChatPrompt) else (),
            policy=request.tool_policy,
            output_format=request.output_format,
        )

    def _instructed(self, prompt: Prompt, policy: ToolPolicy, output_format: OutputFormat | None) -> Prompt:
        if not isinstance(prompt, ChatPrompt):
            return prompt
        return instructed(prompt, policy, output_format, self.dialect)

    def _continuation(self, continuation: Continuation, max_model_len: int) -> list[int]:
        """Its token ids. Raises RequestError 400 when there are none, or too many."""
        most = min(continuation.max_tokens, max_model_len)
        num_tokens = -(-len(continuation.text) // self._longest_token)  # at least
        if num_tokens <= most:
            token_ids = list(continuation.token_ids) or self.tokenizer.encode_continuation(continuation.text)
            num_tokens = len(token_ids)
            if 0 < num_tokens <= most:
                return token_ids
        field = "completion_token_ids" if continuation.token_ids else "completion"
        raise RequestError(400, f"{field}: must have 1 to {most} tokens, got at least {num_tokens}", param=field)

    def _check_fits(self, request: Request, num_prompt_tokens: int, num_continued: int, max_model_len: int) -> None:
        if request.continuation is not None:
            if num_prompt_tokens + num_continued > max_model_len:
                field = _field(request.prompt)
                raise context_length_error(max_model_len, num_prompt_tokens, field, num_continued)
        elif num_prompt_tokens + min(1, request.sampling.max_tokens) > max_model_len:
            raise context_length_error(max_model_len, num_prompt_tokens, _field(request.prompt))

    def encode_with_text(
        self, prompt: Prompt, policy: ToolPolicy = _FREE, output_format: OutputFormat | None = None
    ) -> tuple[list[int], str]:
        """Token ids and the text they stand for, however many they are. Raises RequestError 400 as above."""
        token_ids, text = self._encode(self._instructed(prompt, policy, output_format), None)
        return token_ids, text or self.tokenizer.decode(token_ids, skip_special=False)

    def _encode(self, prompt: Prompt, max_model_len: int | None) -> tuple[list[int], str]:
        """Token ids and text; the text of a token prompt is empty.

        max_model_len: text that cannot fit, whatever its tokens, is refused before it is cut, which takes seconds
        """
        if isinstance(prompt, ChatPrompt):
            rendered = self._template.render(prompt)
            self._check_length(prompt, rendered.text, max_model_len)
            return self.tokenizer.encode_rendered(rendered), without_lone_surrogates(rendered.text)
        if isinstance(prompt, TextPrompt):
            self._check_length(prompt, prompt.text, max_model_len)
            return self.tokenizer.encode_text_prompt(prompt.text), without_lone_surrogates(prompt.text)
        for position, token_id in enumerate(prompt.token_ids):
            if not 0 <= token_id < self.tokenizer.vocab_size:
                raise RequestError(
                    400,
                    f"token id {token_id} is outside the vocabulary (0 to {self.tokenizer.vocab_size - 1})",
                    param=f"prompt[{position}]",
                )
        return list(prompt.token_ids), ""

    def _check_length(self, prompt: Prompt, text: str, max_model_len: int | None) -> None:
        least = -(-len(text) // self._longest_token)
        if max_model_len is not None and least >= max_model_len:
            raise context_length_error(max_model_len, least, _field(prompt), is_least=True)


def _check_vocab_size(tokenizer: Tokenizer, tokenizer_file: Path, gguf: GGUFFile) -> None:
    """The embedding has no row for an id beyond its end; rows without a token are padding, as many models have it."""
    rows = gguf.info("token_embd.weight").shape[0]
    if tokenizer.vocab_size > rows:
        raise CheckpointError(
            f"{tokenizer_file}: the tokenizer has {tokenizer.vocab_size} tokens, more than the {rows} rows of "
            f"token_embd.weight in {gguf.path}"
        )
    if tokenizer.vocab_size < rows:
        logger.warning(
            "%s has %d tokens, the model's embedding has %d rows: is it this model's tokenizer?",
            tokenizer_file, tokenizer.vocab_size, rows,
        )


def _reply_format(tokenizer: Tokenizer) -> ReplyFormat:
    structural = tokenizer.vocabulary.structural_ids
    if "<|eom|>" in structural and "<|message|>" in structural:
        return ReplyFormat.SEGMENTS
    return ReplyFormat.THINK if THINK_CLOSE in structural else ReplyFormat.PLAIN


def _field(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
