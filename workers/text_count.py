"""What a text worker answers without an engine: ids, text and pieces of a prompt, and the text of ids."""

from __future__ import annotations

from ipc.messages import Count, Detokenize, Tokenized
from sparkinfer.text.prompt_encoder import PromptEncoder


def answer(encoder: PromptEncoder, message: Count | Detokenize) -> Tokenized:
    """RequestError 400 for a prompt that cannot be rendered. Takes as long as the prompt is long."""
    tokenizer = encoder.tokenizer
    if isinstance(message, Detokenize):
        text = tokenizer.decode(message.token_ids, message.skip_special)
        return Tokenized(message.request_id, list(message.token_ids), text)
    token_ids, text = encoder.encode_with_text(message.prompt, message.tool_policy, message.output_format)
    pieces = [tokenizer.token_bytes(token_id) for token_id in token_ids] if message.with_pieces else []
    return Tokenized(message.request_id, token_ids, text if message.with_text else "", pieces)
