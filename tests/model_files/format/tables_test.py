"""Tables and slices of random files that Python's json, struct and numpy wrote, against what numpy says they are."""
import json
import os
import random
import struct
import subprocess
import tempfile
import unittest

import numpy as np

DUMP = os.environ['EMS_TABLE_DUMP']
SEED = 20260714
DTYPES = {'F32': np.float32, 'F64': np.float64, 'F16': np.float16, 'U8': np.uint8, 'I64': np.int64, 'I16': np.int16}
GGML = {'F32': 0, 'F16': 1, 'I16': 25, 'I64': 27, 'F64': 28}
NAMES = ['model.layers.{}.weight', 'größe.{}', 'a "quoted" \\ name {}', '層.{}', '😀\t{}']


def random_tensors(rng, dtypes, names, count):
    tensors = []
    for i in range(count):
        shape = [rng.randrange(1, 5) * rng.choice([1, 2]) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.1:
            shape[rng.randrange(len(shape))] = 0
        dtype = rng.choice(list(dtypes))
        raw = rng.randbytes(int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize)
        tensors.append((rng.choice(names).format(i), dtype, np.frombuffer(raw, DTYPES[dtype]).reshape(shape)))
    return tensors


def safetensors(rng, tensors, metadata):
    data, entries = b'', {}
    for name, dtype, array in tensors:
        entries[name] = {'dtype': dtype, 'shape': list(array.shape), 'data_offsets': [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    items = list(entries.items()) + [('__metadata__', metadata)]
    rng.shuffle(items)  # a header need not be in the order of the data
    header = json.dumps(dict(items), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2])).encode()
    header += b' ' * rng.randrange(8)
    return struct.pack('<Q', len(header)) + header + data


def gguf(rng, tensors, metadata):
    def text(value):
        return struct.pack('<Q', len(value.encode())) + value.encode()
    alignment = rng.choice([8, 32, 64, 4096])
    pairs = [text('general.alignment') + struct.pack('<II', 4, alignment)]
    pairs += [text(key) + struct.pack('<I', 8) + text(value) for key, value in metadata.items()]
    rng.shuffle(pairs)
    data, infos = b'', []
    for name, dtype, array in tensors:
        dims = array.shape[::-1]
        infos.append(text(name) + struct.pack(f'<I{len(dims)}Q', len(dims), *dims) + struct.pack('<IQ', GGML[dtype], len(data)))
        data += array.tobytes()
        data += b'\0' * (-len(data) % alignment)
    rng.shuffle(infos)
    head = b'GGUF' + struct.pack('<IQQ', rng.choice([2, 3]), len(tensors), len(pairs)) + b''.join(pairs) + b''.join(infos)
    metadata['general.alignment'] = str(alignment)
    return head + b'\0' * (-len(head) % alignment) + data


class TablesTest(unittest.TestCase):
    def check(self, suffix, file, tensors, metadata, spec):
        axis, rank, ranks = spec
        with tempfile.NamedTemporaryFile(suffix=suffix) as path:
            path.write(file)
            path.flush()
            shown = subprocess.run([DUMP, path.name, str(axis), str(rank), str(ranks)], capture_output=True, text=True, check=False)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        table = json.loads(shown.stdout)
        self.assertEqual(table['metadata'], metadata)
        self.assertEqual([t['offset'] for t in table['tensors']], sorted(t['offset'] for t in table['tensors']))
        found = {t['name']: t for t in table['tensors']}
        self.assertEqual(sorted(found), sorted(name for name, _, _ in tensors))
        for name, dtype, array in tensors:
            tensor = found[name]
            self.assertEqual((tensor['dtype'], tensor['shape'], tensor['bytes']), (dtype, list(array.shape), array.nbytes))
            stored = file[tensor['offset']:tensor['offset'] + tensor['bytes']]
            self.assertEqual(stored, array.tobytes(), name)
            if axis >= array.ndim or array.shape[axis] % ranks:
                self.assertIn('INVALID_ARGUMENT', tensor['slice'])
                continue
            expected = np.split(array, ranks, axis)[rank].tobytes()
            gathered = bytearray(len(expected))
            for offset, count, destination in tensor['slice']:
                gathered[destination:destination + count] = stored[offset:offset + count]
            self.assertEqual(bytes(gathered), expected, f'{name} {array.shape} {spec}')

    def test_files_of_both_formats(self):
        rng = random.Random(SEED)
        for number in range(40):
            for suffix, build, dtypes in (('.safetensors', safetensors, DTYPES), ('.gguf', gguf, GGML)):
                with self.subTest(seed=SEED, number=number, suffix=suffix):
                    metadata = {f'key.{i}': rng.choice(NAMES) for i in range(rng.randrange(4))}
                    tensors = random_tensors(rng, dtypes, NAMES, rng.randrange(12))
                    ranks = rng.randrange(1, 4)
                    spec = rng.randrange(3), rng.randrange(ranks), ranks
                    self.check(suffix, build(rng, tensors, metadata), tensors, metadata, spec)


if __name__ == '__main__':
    unittest.main()
