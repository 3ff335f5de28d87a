"""OpenAI's published ranks, and tiktoken's own encoding of them, without asking any network."""

from __future__ import annotations

import base64
from functools import cache
from hashlib import sha1
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiktoken
from tiktoken_ext import openai_public

import context_compiler
from context_compiler.tokens import unpack_ranks

PACKED = Path(context_compiler.__file__).parent / "data" / "o200k.xz"
URL = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def published() -> bytes:
    """OpenAI's file, made again from the packed one."""
    ranks = unpack_ranks(PACKED.read_bytes())
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())


@cache
def theirs() -> tiktoken.Encoding:
    """tiktoken's o200k_base, with its own pattern and its own check of the ranks, from a cache filled by us."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder, sha1(URL.encode()).hexdigest()).write_bytes(published())
        patch.setenv("TIKTOKEN_CACHE_DIR", folder)
        return tiktoken.Encoding(**openai_public.o200k_base())
