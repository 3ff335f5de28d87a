"""A tiny model with a real tokenizer and chat template: one random layer, which writes nonsense without end."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

WIDTH, HEADS, SEED = 64, 2, 7


def write_tiny_model(source: Path, target: Path) -> None:
    """Write a model with the vocabulary and the chat template of `source`; it needs the packages gguf and numpy."""
    gguf: Any = import_module("gguf")
    numpy: Any = import_module("numpy")
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    tokens = len(reader.fields["tokenizer.ggml.tokens"].contents())
    writer.add_block_count(1)
    writer.add_context_length(8_192)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(tokens)
    dice = numpy.random.default_rng(SEED)

    def random(*shape: int) -> Any:
        return dice.normal(0, 0.3, shape).astype(numpy.float16)

    writer.add_tensor("token_embd.weight", random(tokens, WIDTH))
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", numpy.ones(WIDTH, numpy.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", random(WIDTH, WIDTH))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
