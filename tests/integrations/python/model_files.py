"""Files of models, made with the standard library alone, for tests."""
import json
import os
import random
import struct

GGUF_TYPES = {'F32': 0, 'F16': 1, 'Q8_0': 8, 'I8': 24, 'I32': 26, 'BF16': 30}


def safetensors(tensors, metadata=None):
    """`tensors`: {name: (dtype as the format spells it, shape, bytes)}"""
    header, data = {}, b''
    if metadata:
        header['__metadata__'] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': list(shape), 'data_offsets': [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    return struct.pack('<Q', len(text)) + text + data


def gguf(tensors, metadata=None):
    """As safetensors(); version 3, shapes outermost first."""
    def text(value):
        return struct.pack('<Q', len(value.encode())) + value.encode()
    infos, data = b'', b''
    for name, (dtype, shape, content) in tensors.items():
        data += b'\0' * (-len(data) % 32)
        infos += text(name) + struct.pack('<I', len(shape)) + b''.join(struct.pack('<Q', n) for n in reversed(shape))
        infos += struct.pack('<IQ', GGUF_TYPES[dtype], len(data))
        data += content
    pairs = b''.join(text(key) + struct.pack('<I', 8) + text(value) for key, value in (metadata or {}).items())
    head = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(metadata or {})) + pairs + infos
    return head + b'\0' * (-len(head) % 32) + data


def write(folder, files):
    for path, content in files.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'wb') as file:
            file.write(content)


def read(*path):
    with open(os.path.join(*path), 'rb') as file:
        return file.read()


def random_bytes(count, seed):
    return random.Random(seed).randbytes(count)
