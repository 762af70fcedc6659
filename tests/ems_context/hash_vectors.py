#!/usr/bin/env python3
"""Golden vectors for hash_recipes_test.cc, computed with Python's own libraries (python3-cbor2, python3-xxhash).

    tests/ems_context/hash_vectors.py > tests/ems_context/hash_vectors.h
"""
import hashlib

import cbor2
import xxhash

HASHES = {
    'kSha256Cbor': lambda value: hashlib.sha256(cbor2.dumps(value, canonical=True)).digest(),
    'kXxhashCbor': lambda value: xxhash.xxh3_128_digest(cbor2.dumps(value, canonical=True)),
}
SEEDS = ['0', '42', '', 'a seed of more than twenty-three characters', 'Sämling']
# As kTokens and Extra() of the test: every length of a CBOR integer, 40 tokens in blocks of 16.
TOKENS = [(i * i * 7919 + i) % 200000 if i % 5 else [0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1][i // 5 % 8] for i in range(40)]
EXTRA = [('lora', ('image-hash', -3), ('other', 300), 'salt', bytes(range(32))), None]


def chain_vllm(digest, seed, extra):
    parent, hashes = digest(seed), []
    for block in range(len(TOKENS) // 16):
        parent = digest((parent, tuple(TOKENS[block * 16:block * 16 + 16]), extra[block]))
        hashes.append(parent.hex())
    return hashes


def chain_sglang(tokens, page):
    prior, hashes = None, []
    for first in range(0, len(tokens) - page + 1, page):
        hasher = hashlib.sha256()
        if prior:
            hasher.update(bytes.fromhex(prior))
        for token in tokens[first:first + page]:
            hasher.update(token.to_bytes(4, byteorder='little', signed=False))
        prior = hasher.hexdigest()
        hashes.append(prior)
    return hashes


def quoted(text):
    return '"' + ''.join(c if c.isascii() else ''.join(f'\\x{b:02x}""' for b in c.encode()) for c in text) + '"'


print('#pragma once')
print('// Made by tests/ems_context/hash_vectors.py; do not edit.')
print('#include <string_view>\n#include <vector>\n\n#include "ems_context/hash_recipes.h"\n')
print('namespace ems::context::test {\n')
print('struct VllmVector {\n  VllmHash hash;\n  std::string_view seed;\n  std::string_view none_hash;\n'
      '  std::vector<std::string_view> plain, extra;\n};\n')
print('inline const std::vector<VllmVector> kVllmVectors = {')
for name, digest in HASHES.items():
    for seed in SEEDS:
        row = [f'VllmHash::{name}', quoted(seed), quoted(digest(seed).hex())]
        for extra in ([None, None], EXTRA):
            row.append('{' + ', '.join(quoted(one) for one in chain_vllm(digest, seed, extra)) + '}')
        print('    {' + ', '.join(row) + '},')
print('};\n')
for page in (1, 16, 20):
    hashes = chain_sglang(TOKENS[:40 if page > 1 else 3], page)
    print(f'inline const std::vector<std::string_view> kSglang{page} = {{' + ', '.join(quoted(one) for one in hashes) + '};')
print('\n}  // namespace ems::context::test')
