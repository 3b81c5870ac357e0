"""A tokenizer for the models of `tree_engine`: what JSON is spelled with, in as many tokens as they know."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SIGNS = '{}[]":,.- '
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
WORDS = ['{"', '": "', '", "', '"}', '": ', ', "', "true", "false", "null", "10", "é", "aa", "Z", "\n", "ab"]
"""Pieces of several characters, across the rules of a grammar, and one of two bytes."""


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """64 tokens: one that begins a text, one that ends it (1), and what is between."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [
        "".join(piece for piece, _ in level.pre_tokenize_str(word)) for word in (*SIGNS, *LETTERS, *DIGITS, *WORDS)
    ]
    vocabulary = {piece: index for index, piece in enumerate(["<s>", "</s>", *pieces, "<pad>"])}
    assert len(vocabulary) == 64
    built = Tokenizer(models.BPE(vocabulary, []))
    built.pre_tokenizer, built.decoder = level, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=built, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
