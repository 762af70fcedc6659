// States of sequences in the pool. A state is split into parts, which are named by their SHA-256, and a manifest that lists
// them, which is written last: who finds a manifest finds parts that are whole, or knows that they are not.
//
// Invariant: load() is true only when all bytes are those that were saved, and begin with the tokens that were asked for.
// Bound: WINDOW parts in memory for each load or save.
import crypto from 'node:crypto';

import {Code, Durability, Flag} from './ems_library.mjs';

const WINDOW = 8;
const PART_BYTES_MIN = 64 << 10;
const MANIFEST_BYTES_MAX = 256 << 10;
const STATE_MAGIC = 0x67677371; // 'ggsq': magic, version, token count, tokens; llama.cpp checks the version itself
const STATE_HEADER_WORDS = 3;
const LOADS_TRIED_MAX = 3; // prefixes whose parts have been evicted, before it is a miss

export class StateStore {
  #client;
  #domain;
  #partBytes;
  #options;

  /** `options`: {lookupTimeoutMs, loadTimeoutMs, saveTimeoutMs, durability}. */
  constructor(client, domain, partBytes, options) {
    this.#client = client;
    this.#domain = domain;
    this.#partBytes = partBytes;
    this.#options = options;
  }

  /** A code of ems.h for each checkpoint: OK, it is there; NOT_FOUND, it is not; else nobody knows. */
  lookup(checkpoints) {
    const options = {timeout_ms: this.#options.lookupTimeoutMs, flags: Flag.NO_TOUCH};
    return this.#client.exists(checkpoints.map(({key}) => key), options);
  }

  /** Fills `file` with the state of the longest of `found` (shortest first) that is whole: that one, or null. */
  async loadLongest(found, tokens, file) {
    const until = performance.now() + this.#options.loadTimeoutMs;
    for (const checkpoint of found.slice(-LOADS_TRIED_MAX).reverse()) {
      if (await this.#load(checkpoint, tokens, file, until)) return checkpoint;
    }
    return null;
  }

  async #load(checkpoint, tokens, file, until) {
    const manifest = await this.#manifest(checkpoint, until);
    if (manifest === null) return false;
    const {bytes, partBytes, parts} = manifest;
    for (let first = 0; first < parts.length; first += WINDOW) {
      const digests = parts.slice(first, first + WINDOW);
      const sizes = digests.map((_, i) => Math.min(partBytes, bytes - (first + i) * partBytes));
      const buffers = sizes.map((size) => Buffer.allocUnsafeSlow(size));
      const timeout = left(until);
      if (timeout === 0) return false;
      const keys = digests.map((digest) => this.#domain.part(digest));
      const {codes, lengths} = await this.#client.get(keys, buffers, {timeout_ms: timeout});
      for (const [i, buffer] of buffers.entries()) {
        if (codes[i] !== Code.OK || lengths[i] !== buffer.length) return false;
        if (digestOf(buffer) !== digests[i]) return false;
        if (first + i === 0 && !beginsWithTokens(buffer, tokens, checkpoint.tokens)) return false;
        await file.write((first + i) * partBytes, buffer);
      }
    }
    return true;
  }

  async #manifest(checkpoint, until) {
    const timeout = left(until);
    if (timeout === 0) return null;
    const room = Buffer.allocUnsafeSlow(MANIFEST_BYTES_MAX);
    const {codes, lengths} = await this.#client.get([checkpoint.key], [room], {timeout_ms: timeout});
    return codes[0] === Code.OK ? parseManifest(room.toString('utf8', 0, lengths[0]), checkpoint) : null;
  }

  /**
   * Stores the state of `checkpoint`, which `file` holds: `bytes`, as its writer says. OK, or the code of what went wrong
   * first: DATA_LOSS, the file is not whole (llama.cpp aborts the process that loads such a state). Cost: SHA-256 of it.
   */
  async save(checkpoint, file, bytes) {
    if (file.size !== bytes) return Code.DATA_LOSS;
    const until = performance.now() + this.#options.saveTimeoutMs;
    for (;;) {
      const partBytes = this.#partBytes;
      const code = await this.#saveInParts(checkpoint, file, partBytes, until);
      if (code !== Code.OUT_OF_RANGE || partBytes / 2 < PART_BYTES_MIN) return code;
      this.#partBytes = Math.min(this.#partBytes, partBytes / 2); // the pool takes no values as large
    }
  }

  async #saveInParts(checkpoint, file, partBytes, until) {
    const bytes = file.size;
    const parts = [];
    for (let first = 0; first * partBytes < bytes; first += WINDOW) {
      const buffers = [];
      const digests = [];
      for (let at = first * partBytes; at < bytes && buffers.length < WINDOW; at += partBytes) {
        buffers.push(await file.read(at, Math.min(partBytes, bytes - at)));
        digests.push(digestOf(buffers.at(-1))); // one at a time: others have the event loop in between
      }
      const code = await this.#put(digests.map((digest) => this.#domain.part(digest)), buffers, until);
      if (code !== Code.OK) return code;
      parts.push(...digests);
    }
    const manifest = Buffer.from(JSON.stringify({tokens: checkpoint.tokens, bytes, partBytes, parts}));
    return this.#put([checkpoint.key], [manifest], until);
  }

  // Overwrites: parts of a name have the same bytes, which then do not move, unless they were damaged; a new manifest
  // replaces one whose parts have gone.
  async #put(keys, buffers, until) {
    const timeout = left(until);
    if (timeout === 0) return Code.DEADLINE_EXCEEDED;
    const options = {timeout_ms: timeout, flags: Flag.OVERWRITE, durability: Durability[this.#options.durability]};
    const codes = await this.#client.put(keys, buffers, options);
    return codes.find((code) => code !== Code.OK) ?? Code.OK;
  }
}

const left = (until) => Math.max(0, Math.min(30_000, Math.floor(until - performance.now())));

const digestOf = (buffer) => crypto.createHash('sha256').update(buffer).digest('hex');

/** Checked before anything is allocated; null: it is not of this checkpoint, or not a manifest. */
function parseManifest(text, checkpoint) {
  try {
    const {tokens, bytes, partBytes, parts} = JSON.parse(text);
    const whole = tokens === checkpoint.tokens && Number.isSafeInteger(bytes) && bytes > 0
      && Number.isSafeInteger(partBytes) && partBytes >= PART_BYTES_MIN && partBytes <= 1 << 30
      && Array.isArray(parts) && parts.length === Math.ceil(bytes / partBytes)
      && parts.every((part) => /^[0-9a-f]{64}$/.test(part));
    return whole ? {bytes, partBytes, parts} : null;
  } catch {
    return null;
  }
}

// Not the key alone says which tokens a state is of. What lies beyond the first part is left to the key.
function beginsWithTokens(part, tokens, count) {
  if (part.length < 4 * STATE_HEADER_WORDS || part.readUInt32LE(0) !== STATE_MAGIC || part.readUInt32LE(8) !== count) {
    return false;
  }
  const there = Math.min(count, Math.floor(part.length / 4) - STATE_HEADER_WORDS);
  for (let i = 0; i < there; ++i) {
    if (part.readInt32LE(4 * (STATE_HEADER_WORDS + i)) !== tokens[i]) return false;
  }
  return true;
}
