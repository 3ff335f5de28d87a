"""Pack OpenAI's `o200k_base.tiktoken` into the file that the package ships.

    python benchmarks/pack_ranks.py o200k_base.tiktoken [context_compiler/data/o200k.xz]

The file is published at https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken. It is packed only if
its SHA-256 is the one in tiktoken's source.
"""

from __future__ import annotations

import lzma
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

from context_compiler.tokens import DIGEST, PUBLISHED, RANKS

HERE = Path(__file__).resolve().parent
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273}]
"""LZMA settings for unaligned text: more context from the previous byte and none from the position saves 15 kB."""


def payload(published: bytes) -> bytes:
    """Return one length byte per token, then all tokens, both in rank order.

    Raises:
        ValueError: The bytes are not those that OpenAI published, or the ranks are not contiguous.
    """
    if sha256(published).hexdigest() != PUBLISHED:
        raise ValueError(f"SHA-256 is {sha256(published).hexdigest()}, expected {PUBLISHED}")
    lines = [line.split() for line in published.splitlines()]
    if [int(rank) for _, rank in lines] != list(range(RANKS)):
        raise ValueError("the ranks are not contiguous")
    tokens = [b64decode(token) for token, _ in lines]
    return bytes(map(len, tokens)) + b"".join(tokens)


def main(published: str, packed: str = str(HERE.parent / "context_compiler/data/o200k.xz")) -> None:
    unpacked = payload(Path(published).read_bytes())
    digest = sha256(unpacked).hexdigest()
    size = Path(packed).write_bytes(lzma.compress(unpacked, filters=FILTERS))
    print(f"{packed}: {size:,} bytes, {RANKS:,} tokens, DIGEST {digest}")
    if digest != DIGEST:
        sys.exit("put this DIGEST into context_compiler/tokens/__init__.py")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] not in ([], ["--help"]) else print(__doc__)
