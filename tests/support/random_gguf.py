#!/usr/bin/env python3
"""Writes a GGUF model of random weights: a real engine can run it, and its tokens show whether KV was right.

    random_gguf.py FILE [--seed N] [--layers N]

The llama architecture with grouped-query attention, 23 million parameters in F16 (46 MB), 1,024 tokens: the 256 bytes, so that
any text can be tokenised, and words that nobody needs. 4 KiB of KV a token in F16. The same arguments give the same bytes.
"""
import argparse
import struct

import numpy

EMBEDDING, FEED_FORWARD, HEADS, KV_HEADS, HEAD = 512, 1408, 8, 2, 64
VOCABULARY, CONTEXT = 1024, 4096
ALIGNMENT = 32

UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5  # types of metadata
F32, F16 = 0, 1  # types of tensors
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # types of tokens


def string(text):
    data = text.encode()
    return struct.pack('<Q', len(data)) + data


def entry(key, kind, value):
    packed = string(value) if kind == STRING else struct.pack({UINT32: '<I', FLOAT32: '<f'}[kind], value)
    return string(key) + struct.pack('<I', kind) + packed


def array(key, kind, values):
    packed = b''.join(map(string, values)) if kind == STRING else numpy.asarray(
        values, {FLOAT32: '<f4', INT32: '<i4'}[kind]).tobytes()
    return string(key) + struct.pack('<IIQ', ARRAY, kind, len(values)) + packed


def metadata(layers):
    tokens = ['<unk>', '<s>', '</s>'] + [f'<0x{byte:02X}>' for byte in range(256)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    tokens.append('\u2581')  # a blank
    kinds.append(NORMAL)
    words = VOCABULARY - len(tokens)
    tokens += [f'\u2581w{i}' for i in range(words)]
    kinds += [NORMAL] * words
    return [
        entry('general.architecture', STRING, 'llama'),
        entry('general.name', STRING, 'random'),
        entry('general.alignment', UINT32, ALIGNMENT),
        entry('llama.context_length', UINT32, CONTEXT),
        entry('llama.embedding_length', UINT32, EMBEDDING),
        entry('llama.block_count', UINT32, layers),
        entry('llama.feed_forward_length', UINT32, FEED_FORWARD),
        entry('llama.attention.head_count', UINT32, HEADS),
        entry('llama.attention.head_count_kv', UINT32, KV_HEADS),
        entry('llama.attention.layer_norm_rms_epsilon', FLOAT32, 1e-5),
        entry('llama.rope.dimension_count', UINT32, HEAD),
        entry('llama.rope.freq_base', FLOAT32, 10000.0),
        entry('llama.vocab_size', UINT32, VOCABULARY),
        entry('tokenizer.ggml.model', STRING, 'llama'),
        array('tokenizer.ggml.tokens', STRING, tokens),
        array('tokenizer.ggml.scores', FLOAT32, [-float(i) for i in range(VOCABULARY)]),
        array('tokenizer.ggml.token_type', INT32, kinds),
        entry('tokenizer.ggml.bos_token_id', UINT32, 1),
        entry('tokenizer.ggml.eos_token_id', UINT32, 2),
        entry('tokenizer.ggml.unknown_token_id', UINT32, 0),
    ]


def shapes(layers):
    """(name, rows, columns); no rows: a vector of ones. A row has the weights of one output."""
    yield 'token_embd.weight', VOCABULARY, EMBEDDING
    for i in range(layers):
        yield f'blk.{i}.attn_norm.weight', 0, EMBEDDING
        yield f'blk.{i}.attn_q.weight', HEADS * HEAD, EMBEDDING
        yield f'blk.{i}.attn_k.weight', KV_HEADS * HEAD, EMBEDDING
        yield f'blk.{i}.attn_v.weight', KV_HEADS * HEAD, EMBEDDING
        yield f'blk.{i}.attn_output.weight', EMBEDDING, HEADS * HEAD
        yield f'blk.{i}.ffn_norm.weight', 0, EMBEDDING
        yield f'blk.{i}.ffn_gate.weight', FEED_FORWARD, EMBEDDING
        yield f'blk.{i}.ffn_up.weight', FEED_FORWARD, EMBEDDING
        yield f'blk.{i}.ffn_down.weight', EMBEDDING, FEED_FORWARD
    yield 'output_norm.weight', 0, EMBEDDING
    yield 'output.weight', VOCABULARY, EMBEDDING


def tensors(seed, layers):
    random = numpy.random.default_rng(seed)
    for name, rows, columns in shapes(layers):
        if rows == 0:
            yield name, F32, numpy.ones(columns, '<f4')
        else:  # outputs about as large as inputs; queries and keys larger, so that attention is not flat
            gain = 2.0 if 'attn_q' in name or 'attn_k' in name else 1.0
            weights = random.standard_normal((rows, columns), numpy.float32) * (gain / columns ** 0.5)
            yield name, F16, weights.astype('<f2')


def write(path, seed=1, layers=8):
    write_file(path, metadata(layers), tensors(seed, layers))


def write_adapter(path, seed=1, rank=4):
    """A LoRA adapter of the model, for the queries and values of its first layer; large enough to change tokens."""
    entries = [
        entry('general.architecture', STRING, 'llama'),
        entry('general.type', STRING, 'adapter'),
        entry('adapter.type', STRING, 'lora'),
        entry('adapter.lora.alpha', FLOAT32, float(rank)),
    ]
    random = numpy.random.default_rng(seed)
    weights = []
    for name, rows in (('attn_q', HEADS * HEAD), ('attn_v', KV_HEADS * HEAD)):
        weights.append((f'blk.0.{name}.weight.lora_a', F32, random.standard_normal((rank, EMBEDDING), numpy.float32)))
        weights.append((f'blk.0.{name}.weight.lora_b', F32, random.standard_normal((rows, rank), numpy.float32)))
    write_file(path, entries, weights)


def write_file(path, entries, weights):
    infos, blobs, offset = [], [], 0
    for name, kind, values in weights:
        blob = values.tobytes()
        blob += bytes(-len(blob) % ALIGNMENT)
        dimensions = values.shape[::-1]
        infos.append(string(name) + struct.pack(f'<I{len(dimensions)}QIQ', len(dimensions), *dimensions, kind, offset))
        blobs.append(blob)
        offset += len(blob)
    head = b'GGUF' + struct.pack('<IQQ', 3, len(infos), len(entries)) + b''.join(entries) + b''.join(infos)
    with open(path, 'wb') as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for blob in blobs:
            file.write(blob)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('file')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--layers', type=int, default=8)
    options = parser.parse_args()
    write(options.file, options.seed, options.layers)


if __name__ == '__main__':
    main()
