// States as manifests and parts, over a pool that is a Map.
import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import test from 'node:test';

import {Code} from '../../../integrations/llama_cpp/ems_library.mjs';
import {KeyDomain} from '../../../integrations/llama_cpp/key_domain.mjs';
import {StateStore} from '../../../integrations/llama_cpp/state_store.mjs';

const PART = 64 << 10;
const TIMES = {lookupTimeoutMs: 1000, loadTimeoutMs: 10_000, saveTimeoutMs: 10_000, durability: 'dram'};
const domain = new KeyDomain({test: 1});
const tokens = Array.from({length: 128}, (_, i) => i);
const checkpoints = domain.checkpoints(tokens, 64);

class MapPool {
  values = new Map();
  puts = [];
  valueBytesMax = Infinity;

  async exists(keys) {
    return keys.map((key) => (this.values.has(String(key)) ? Code.OK : Code.NOT_FOUND));
  }

  async get(keys, buffers) {
    const found = keys.map((key, i) => {
      const value = this.values.get(String(key));
      if (value === undefined) return [Code.NOT_FOUND, 0];
      if (value.length > buffers[i].length) return [Code.OUT_OF_RANGE, 0];
      value.copy(buffers[i]);
      return [Code.OK, value.length];
    });
    return {codes: found.map(([code]) => code), lengths: found.map(([, length]) => length)};
  }

  async put(keys, buffers) {
    return keys.map((key, i) => {
      if (buffers[i].length > this.valueBytesMax) return Code.OUT_OF_RANGE;
      this.puts.push(String(key));
      this.values.set(String(key), Buffer.from(buffers[i]));
      return Code.OK;
    });
  }
}

class BufferFile {
  constructor(bytes = Buffer.alloc(0)) {
    this.bytes = bytes;
  }

  get size() {
    return this.bytes.length;
  }

  async read(offset, size) {
    return Buffer.from(this.bytes.subarray(offset, offset + size));
  }

  async write(offset, buffer) {
    const grown = Buffer.alloc(Math.max(this.bytes.length, offset + buffer.length));
    this.bytes.copy(grown);
    buffer.copy(grown, offset);
    this.bytes = grown;
  }
}

/** A file as llama.cpp would write it of the first `count` tokens, of `size` bytes in all. */
function state(count, size) {
  const bytes = crypto.createHash('shake256', {outputLength: size}).update(`${count}`).digest();
  bytes.writeUInt32LE(0x67677371, 0);
  bytes.writeUInt32LE(3, 4);
  bytes.writeUInt32LE(count, 8);
  tokens.slice(0, count).forEach((token, i) => bytes.writeInt32LE(token, 12 + 4 * i));
  return new BufferFile(bytes);
}

async function saved(sizes = [10 * PART + 5, 12 * PART]) {
  const pool = new MapPool();
  const store = new StateStore(pool, domain, PART, TIMES);
  const files = sizes.map((size, i) => state(checkpoints[i].tokens, size));
  for (const [i, file] of files.entries()) assert.equal(await store.save(checkpoints[i], file, file.size), Code.OK);
  return {pool, store, files};
}

async function loaded(store, found = checkpoints) {
  const file = new BufferFile();
  const checkpoint = await store.loadLongest(found, tokens, file);
  return checkpoint && {tokens: checkpoint.tokens, bytes: file.bytes};
}

test('the longest state comes back as it was', async () => {
  const {store, files} = await saved();
  assert.deepEqual(await store.lookup(checkpoints), [Code.OK, Code.OK]);
  assert.deepEqual(await loaded(store), {tokens: 128, bytes: files[1].bytes});
  assert.deepEqual(await loaded(store, checkpoints.slice(0, 1)), {tokens: 64, bytes: files[0].bytes});
});

test('the manifest is written last', async () => {
  const {pool} = await saved([10 * PART + 5]);
  assert.equal(pool.puts.length, 12);
  assert.equal(pool.puts.at(-1), String(checkpoints[0].key));
});

test('without one of its parts a state is not there, and the shorter one is taken', async () => {
  const {pool, store, files} = await saved();
  const {parts} = JSON.parse(pool.values.get(String(checkpoints[1].key)));
  pool.values.delete(String(domain.part(parts[9])));
  assert.deepEqual(await loaded(store), {tokens: 64, bytes: files[0].bytes});
});

for (const [what, spoil] of Object.entries({
  'a byte that differs': (part) => part.fill(part[3] ^ 1, 3, 4),
  'a part that is shorter': (part) => part.subarray(1),
  'a part that is longer': (part) => Buffer.concat([part, Buffer.from('x')]),
})) {
  test(`${what} is a miss`, async () => {
    const {pool, store} = await saved();
    for (const [i, key] of pool.puts.entries()) {
      if (key.includes('/part/') && i % 5 === 0) pool.values.set(key, spoil(pool.values.get(key)));
    }
    assert.equal(await loaded(store), null);
  });
}

for (const [what, change] of Object.entries({
  'no JSON': () => 'x',
  'not an object': () => '7',
  'other tokens': (manifest) => ({...manifest, tokens: 64}),
  'fewer parts': (manifest) => ({...manifest, parts: manifest.parts.slice(1)}),
  'no parts': (manifest) => ({...manifest, parts: [], bytes: 0}),
  'parts of no size': (manifest) => ({...manifest, partBytes: 0}),
  'parts that are too large': (manifest) => ({...manifest, partBytes: 2 ** 40, bytes: 2 ** 40, parts: [manifest.parts[0]]}),
  'other names': (manifest) => ({...manifest, parts: manifest.parts.map(() => '../etc')}),
  'other bytes': (manifest) => ({...manifest, bytes: manifest.bytes - 1}),
})) {
  test(`a manifest with ${what} is a miss`, async () => {
    const {pool, store} = await saved();
    const name = String(checkpoints[1].key);
    const changed = change(JSON.parse(pool.values.get(name)));
    pool.values.set(name, Buffer.from(typeof changed === 'string' ? changed : JSON.stringify(changed)));
    assert.equal(await loaded(store, checkpoints.slice(1)), null);
  });
}

test('a state of other tokens is a miss, whatever its key says', async () => {
  const {store} = await saved();
  const other = state(128, 2 * PART);
  other.bytes.writeInt32LE(1000, 12 + 4 * 127);
  assert.equal(await store.save(checkpoints[1], other, other.size), Code.OK);
  assert.equal(await loaded(store, checkpoints.slice(1)), null);
});

test('a file that is not whole is not saved', async () => {
  const {pool, store} = await saved([]);
  const file = state(64, 2 * PART);
  assert.equal(await store.save(checkpoints[0], file, file.size + 1), Code.DATA_LOSS);
  assert.equal(pool.values.size, 0);
});

test('parts become smaller until the pool takes them', async () => {
  const pool = new MapPool();
  pool.valueBytesMax = PART + 100;
  const store = new StateStore(pool, domain, 8 * PART, TIMES);
  const file = state(64, 20 * PART + 1);
  assert.equal(await store.save(checkpoints[0], file, file.size), Code.OK);
  assert.equal(pool.values.size, 22);
  assert.deepEqual((await loaded(store, checkpoints.slice(0, 1))).bytes, file.bytes);
});

test('a pool that takes no values at all is said', async () => {
  const pool = new MapPool();
  pool.valueBytesMax = 10;
  const store = new StateStore(pool, domain, 8 * PART, TIMES);
  const file = state(64, 20 * PART);
  assert.equal(await store.save(checkpoints[0], file, file.size), Code.OUT_OF_RANGE);
});

test('no time is a miss, and no save', async () => {
  const {pool} = await saved();
  const store = new StateStore(pool, domain, PART, {...TIMES, loadTimeoutMs: 0, saveTimeoutMs: 0});
  assert.equal(await loaded(store), null);
  const file = state(64, PART);
  assert.equal(await store.save(checkpoints[0], file, file.size), Code.DEADLINE_EXCEEDED);
});
