"""A llama whose weights are set by hand so that it finds what followed a token: a needle in any text, without training.

Every token has a random code of +-1. The residual stream has four parts of as many dimensions: the token's code, the
code of the token before, what the model answers, and ones. Rotary pairs turn by base^(-j/64) a position with a base so
high that the first quarter turns fast and the rest hardly at all over thousands of positions. The first layer looks one
position back by the fast pairs and copies that token's code into the second part; the next layer compares, on the slow
pairs, its token's code with everybody's second part, and copies the code of who matches into the answer; the output
matrix reads it. Feed-forward parts are zero.
"""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import torch

VOCAB, CODE, HEAD = 512, 96, 128
HIDDEN, FFN, Q_HEADS, KV_HEADS = 4 * CODE, 128, 4, 2
THETA = 1e18
FAST = (HEAD - CODE) // 2  # pairs
# Small enough that a cache's rounding could show: one token before among neighbours, one of 4,097 that matches
BACK_LEAD = 8.0     # by how much the score of the token before leads its neighbours', in nats
MATCH_SCORE = 15.0  # of equal codes; others have a third of it at most: the match has 99.6 % of a text of 4,097
ANSWER_SCORE = 14.0
LEAD = 8.0  # nats of the answer over the next best token; 9.0 in f32
MAX_DIVERGENCE = 1e-3

NEEDLE = list(range(1, 10))  # tokens that the rest of a text does not have; the first is the key
TOKEN, PREVIOUS, ANSWER, ONES = (slice(CODE * part, CODE * (part + 1)) for part in range(4))


def write(path: Path) -> None:
    """The model as a GGUF file of Q8_0 matrices."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(Q_HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    for name, values in _tensors().items():
        values = values.astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text(length: int, depth: float) -> list[int]:
    """Random tokens with the needle at a share of the way, from the first token on to the end; the key comes last."""
    rng = random.Random(length)
    filler = [rng.randrange(len(NEEDLE) + 1, VOCAB) for _ in range(length - len(NEEDLE) - 1)]
    start = 1 + round(depth * (len(filler) - 1))  # a first token looks at itself, having none before it
    return filler[:start] + NEEDLE + filler[start:] + NEEDLE[:1]


def least_lead(rows: torch.Tensor) -> float:
    """Of the best token over the next; rows: [n, VOCAB] log-probabilities."""
    best = rows.topk(2)[0]
    return float((best[:, 0] - best[:, 1]).min())


def divergence(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Mean KL over rows of log-probabilities [n, VOCAB]."""
    return float((expected.exp() * (expected - found)).sum(-1).mean())


def _tensors() -> dict[str, np.ndarray]:
    codes = np.random.default_rng(5).choice((-1.0, 1.0), (VOCAB, CODE))
    embedding, output = np.zeros((VOCAB, HIDDEN)), np.zeros((VOCAB, HIDDEN))
    embedding[:, TOKEN], embedding[:, ONES] = codes, 1.0
    output[:, ANSWER] = codes * ANSWER_SCORE / CODE
    found = {"token_embd.weight": embedding, "output.weight": output, "output_norm.weight": np.ones(HIDDEN)}
    for layer, (query, key, value, out) in enumerate((_look_back(), _look_up())):
        # the norm before it divides by the share of dimensions that are not zero yet
        norm = np.full(HIDDEN, np.sqrt((2 + layer) / 4))
        tensors = {
            "attn_norm": norm, "ffn_norm": norm, "attn_q": _heads(query, Q_HEADS), "attn_k": _heads(key, KV_HEADS),
            "attn_v": _heads(value, KV_HEADS), "attn_output": _heads(out.T, Q_HEADS).T,
            "ffn_gate": np.zeros((FFN, HIDDEN)), "ffn_up": np.zeros((FFN, HIDDEN)),
            "ffn_down": np.zeros((HIDDEN, FFN)),
        }
        found |= {f"blk.{layer}.{name}.weight": values for name, values in tensors.items()}
    return found


def _heads(first: np.ndarray, count: int) -> np.ndarray:
    """[count * HEAD, HIDDEN]: one head's rows, the other heads zero."""
    return np.concatenate((first, np.zeros(((count - 1) * HEAD, HIDDEN))))


def _copy(source: slice, target: slice) -> tuple[np.ndarray, np.ndarray]:
    """(rows of values [HEAD, HIDDEN], columns of the output [HIDDEN, HEAD])."""
    value, out = np.zeros((HEAD, HIDDEN)), np.zeros((HIDDEN, HEAD))
    value[:CODE, source] = np.eye(CODE)
    out[target, :CODE] = np.eye(CODE)
    return value, out


def _look_back() -> tuple[np.ndarray, ...]:
    angles = THETA ** (-np.arange(FAST) / (HEAD // 2))
    lead = (1 - np.cos(angles)).sum() / np.sqrt(HEAD)  # of distance 1 over 0 and 2, for queries and keys of length 1
    size = np.sqrt(BACK_LEAD / lead) / CODE            # all of the ones are added
    query, key = np.zeros((HEAD, HIDDEN)), np.zeros((HEAD, HIDDEN))
    query[0 : 2 * FAST : 2, ONES] = size * np.cos(angles)[:, None]
    query[1 : 2 * FAST : 2, ONES] = -size * np.sin(angles)[:, None]
    key[0 : 2 * FAST : 2, ONES] = size
    return query, key, *_copy(TOKEN, PREVIOUS)


def _look_up() -> tuple[np.ndarray, ...]:
    size = np.sqrt(MATCH_SCORE * np.sqrt(HEAD) / CODE)
    query, key = np.zeros((HEAD, HIDDEN)), np.zeros((HEAD, HIDDEN))
    query[2 * FAST :, TOKEN] = size * np.eye(CODE)
    key[2 * FAST :, PREVIOUS] = size * np.eye(CODE)
    return query, key, *_copy(TOKEN, ANSWER)
