"""Text to token ids and back for one model. Knows the vocabulary; never a chat template or a request.

Three ways in, by how much the text is trusted:

    encode                plain text: never yields a structural token (see Vocabulary.structural_ids)
    encode_text_prompt    the same, with BOS and EOS as the model's file says
    encode_rendered       a rendered chat: structural tokens exactly where the template put them
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from sparkinfer.checkpoint.metadata import MetadataReader
from sparkinfer.errors import CheckpointError
from sparkinfer.text import bpe, pre_tokenizers
from sparkinfer.text.special_text import RenderedPrompt, SpecialText
from sparkinfer.text.token_types import STOP_TEXTS, TokenType, mended_types
from sparkinfer.text.vocabulary import Vocabulary, named_ids, token_id_of

_MAX_VOCABULARY = 1 << 24
_SOME_FILE = Path("GGUF file")  # in messages about metadata that came without its path


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """What surrounds the text: ids are None where the model has no such token."""

    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False  # SentencePiece: a blank before the first word, as if it stood inside a sentence

    @classmethod
    def from_metadata(
        cls, reader: MetadataReader, size: int, *, add_bos: bool, add_space_prefix: bool
    ) -> TokenizerOptions:
        """Explicit keys of the file win over the family's defaults that are passed here; ids beyond `size` are none."""

        def token_id(name: str) -> int | None:
            value = token_id_of(reader, name)
            return value if value is not None and value < size else None

        return cls(
            bos_token_id=token_id("bos"),
            eos_token_id=token_id("eos"),
            eot_token_id=token_id("eot"),
            add_bos=reader.flag("tokenizer.ggml.add_bos_token", add_bos),
            add_eos=reader.flag("tokenizer.ggml.add_eos_token", False),
            add_space_prefix=reader.flag("tokenizer.ggml.add_space_prefix", add_space_prefix),
        )


class Tokenizer:
    """Immutable after construction; every method may be called from several threads at once."""

    def __init__(self, vocabulary: Vocabulary, backend: Backend, options: TokenizerOptions) -> None:
        self.vocabulary = vocabulary
        self.options = options
        self.special_text = SpecialText(vocabulary.structural_ids)
        self._backend = backend
        self._bytes = [vocabulary.token_bytes(i) for i in range(len(vocabulary))]
        self._is_special = [vocabulary.is_special(i) for i in range(len(vocabulary))]
        self._whole_texts: dict[int, str | None] = {}  # filled as tokens are seen
        self.stop_token_ids = self._find_stop_token_ids()

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any], path: Path = _SOME_FILE) -> Tokenizer:
        """The tokenizer described by a GGUF file's `tokenizer.ggml.*` keys; CheckpointError if it cannot be built."""
        reader = MetadataReader(metadata, path)
        vocabulary = Vocabulary.from_metadata(reader)
        size = len(vocabulary)
        model = reader.text("tokenizer.ggml.model", "")
        if model == "gpt2":
            pre = reader.text("tokenizer.ggml.pre") if "tokenizer.ggml.pre" in reader else None
            rules = pre_tokenizers.select(pre, reader.text("general.architecture", ""))
            backend = bpe.byte_level_bpe(vocabulary, reader.texts("tokenizer.ggml.merges", ()), rules)
            options = TokenizerOptions.from_metadata(reader, size, add_bos=rules.adds_bos, add_space_prefix=False)
        elif model == "llama":
            backend = bpe.sentencepiece_bpe(vocabulary, reader.numbers("tokenizer.ggml.scores", ()))
            options = TokenizerOptions.from_metadata(reader, size, add_bos=True, add_space_prefix=True)
        else:
            reader.fail("tokenizer.ggml.model", "'gpt2' (BPE) or 'llama' (SentencePiece)")
        return cls(vocabulary, backend, options)

    @classmethod
    def from_file(cls, path: str | Path, metadata: dict[str, Any], model_path: Path = _SOME_FILE) -> Tokenizer:
        """A Hugging Face tokenizer.json in place of the GGUF file's arrays; BOS, EOS and template stay the file's."""
        reader = MetadataReader(metadata, model_path)
        try:
            definition = json.loads(Path(path).read_text(encoding="utf-8"))
            vocabulary = _vocabulary_of(definition, reader)
            definition["added_tokens"] = [
                token for token in definition.get("added_tokens", [])
                if token["content"] in vocabulary.added_text_ids
            ]
            definition["model"]["vocab"] = vocabulary.mergeable_ids
            backend = _backend_of(json.dumps(definition))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not a usable tokenizer.json: {error}") from error
        size = len(vocabulary)
        options = TokenizerOptions.from_metadata(reader, size, add_bos=False, add_space_prefix=False)
        return cls(vocabulary, backend, options)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Releases the GIL while it works, so a long text does not stall the other threads."""
        return self._encode_all([text])[0]

    def encode_continuation(self, text: str) -> list[int]:
        """As `encode`, for text that goes on from other text: SentencePiece puts no blank before it."""
        return self._encode_all([text], prefix="")[0]

    def encode_text_prompt(self, text: str) -> list[int]:
        options = self.options
        start = [options.bos_token_id] if options.add_bos and options.bos_token_id is not None else []
        end = [options.eos_token_id] if options.add_eos and options.eos_token_id is not None else []
        return [*start, *self.encode(text), *end]

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """Ids of a rendered chat; BOS comes first if the model wants one and the template did not write it."""
        spans, text = rendered.special_spans, rendered.text
        starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
        runs = self._encode_all([text[start:end] for start, end in zip(starts, ends, strict=True)])
        ids = runs[0]
        for (start, end), run in zip(spans, runs[1:], strict=True):
            ids.append(self.vocabulary.structural_ids[text[start:end]])
            ids += run
        bos = self.options.bos_token_id
        if self.options.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token; b"" for unused ids and for ids beyond the vocabulary."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        """Whether decoding leaves the token out: control tokens and ids beyond the vocabulary."""
        return self._is_special[token_id] if 0 <= token_id < len(self._is_special) else True

    def whole_text(self, token_id: int) -> str | None:
        """The token's text if its bytes are complete characters ("" if it is special), else None."""
        try:
            return self._whole_texts[token_id]
        except KeyError:
            text: str | None = ""
            if not self.is_special(token_id):
                try:
                    text = self.token_bytes(token_id).decode("utf-8")
                except UnicodeDecodeError:
                    text = None
            self._whole_texts[token_id] = text
            return text

    def token_text(self, token_id: int | None) -> str | None:
        """The text of a BOS or EOS id as templates write it, which is the vocabulary's own; None for None."""
        if token_id is None:
            return None
        text = self.vocabulary.tokens[token_id]
        return text if text in self.vocabulary.structural_ids else self._bytes[token_id].decode("utf-8", "replace")

    def decode(self, token_ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of whole ids, U+FFFD for invalid bytes; the inverse of `encode`, so its blank prefix is dropped."""
        data = b"".join(self.token_bytes(i) for i in token_ids if not (skip_special and self.is_special(i)))
        if self.options.add_space_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def _encode_all(self, texts: list[str], prefix: str | None = None) -> list[list[int]]:
        """One call for all texts: between two calls another thread could keep the GIL for its whole interval.

        prefix: of each text that is not empty; None: as the model has it
        """
        if prefix is None:
            prefix = " " if self.options.add_space_prefix else ""
        prepared = [prefix + without_lone_surrogates(text) if text else "" for text in texts]
        return [list(encoding.ids) for encoding in self._backend.encode_batch_fast(prepared, add_special_tokens=False)]

    def _find_stop_token_ids(self) -> frozenset[int]:
        structural = self.vocabulary.structural_ids
        ids = {structural[text] for text in STOP_TEXTS if text in structural}
        named = (self.options.eos_token_id, self.options.eot_token_id)
        return frozenset(ids.union(i for i in named if i is not None))


def _vocabulary_of(definition: dict[str, Any], reader: MetadataReader) -> Vocabulary:
    by_id = {token_id: text for text, token_id in definition["model"]["vocab"].items()}
    added = {token["id"]: token for token in definition.get("added_tokens", [])}
    by_id |= {token_id: token["content"] for token_id, token in added.items()}
    bad = next((i for i in by_id if type(i) is not int or not 0 <= i < _MAX_VOCABULARY), None)
    if bad is not None:
        raise ValueError(f"token id {bad!r} is not an integer from 0 to {_MAX_VOCABULARY - 1}")
    tokens = [by_id.get(i, "") for i in range(max(by_id) + 1)]
    types = [TokenType.NORMAL if i in by_id else TokenType.UNUSED for i in range(len(tokens))]
    for token_id, token in added.items():
        types[token_id] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    byte_level = "ByteLevel" in json.dumps([definition.get("pre_tokenizer"), definition.get("decoder")])
    mended = mended_types(tokens, types, *named_ids(reader))
    return Vocabulary(tokens, mended, byte_level, reader.text("tokenizer.chat_template", ""))


def _backend_of(definition: str) -> Backend:
    """Raises ValueError; the library itself raises nothing narrower than Exception."""
    try:
        return Backend.from_str(definition)
    except Exception as error:
        raise ValueError(str(error)) from error


def without_lone_surrogates(text: str) -> str:
    """Halves of UTF-16 pairs, which JSON can carry and UTF-8 cannot, become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
