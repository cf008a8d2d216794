"""A model's vocabulary as grammars need it. Knows tokens; never a grammar's text."""

from __future__ import annotations

from sparkinfer.grammar.free_text import FreeTexts, TokenTexts
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import OutputGrammar
from sparkinfer.grammar.tokenizer_adapter import grammar_tokenizer, special_token_ids
from sparkinfer.text.tokenizer import Tokenizer


class GrammarVocabulary:
    """Takes more than a second to make for a quarter of a million tokens, with the GIL held for a part of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend = grammar_tokenizer(tokenizer)
        texts = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self._free_texts = FreeTexts(TokenTexts(texts, special_token_ids(tokenizer)))

    def compiled(self, grammar: OutputGrammar) -> Matcher:
        """A matcher at the start of `grammar`. Raises GrammarError."""
        return Matcher.compile(grammar, self.backend, self._free_texts.masks(grammar.free_text))
