// Objects of the pool with promises: batches are submitted to a completion queue, and one call of poll(2) on a thread of libuv
// waits for its eventfd while any is under way. Nothing here blocks the event loop for longer than a submit takes.
//
// Invariant: memory of a batch is referenced from here until its completion has come. Bound: IN_FLIGHT_MAX batches.
import {setTimeout} from 'node:timers/promises';

import {Code, VERIFY_ALWAYS, later} from './ems_library.mjs';

const IN_FLIGHT_MAX = 256;
const POLL_MS = 1000; // and then once more: no completion is waited for longer than its own deadline says
const NO_POLL_MS = 5; // when no thread can be had for poll(2): looks that often
const POLLIN = 1;
const ITEM_WORDS = 4; // ems_item: key, key_size, iov, count
const IOV_WORDS = 2; // ems_iov: base, size
const COMPLETION_BYTES = 24; // ems_completion: tag, code, reserved, value

/** A call that did not do what it should; `code` is one of ems.h. */
export class PoolError extends Error {
  constructor(what, code, text) {
    super(`${what}: ${text}`);
    this.code = code;
  }
}

export class ObjectClient {
  #library;
  #client;
  #queue;
  #pending = new Map(); // tag → {resolve, codes, lengths, memory}
  #nextTag = 1n;
  #waiting = null; // a promise while poll(2) is under way
  #closed = false;

  /** Connects. Throws PoolError when there is no controller within `startTimeoutMs`. */
  static async connect(library, {controller, namespace, shmToken, startTimeoutMs}) {
    const options = library.clientOptions({
      controller, name_space: namespace, shm_token: shmToken, start_timeout_ms: startTimeoutMs,
    });
    const handle = Buffer.allocUnsafeSlow(8).fill(0);
    // The text of an error stays with the thread that failed, so it is not asked for.
    const code = await later(library.connect, options, handle);
    if (code !== Code.OK) throw new PoolError(`connect to ${controller}`, code, library.statusName(code));
    const client = handle.readBigUInt64LE();
    const made = library.cqCreate(client, IN_FLIGHT_MAX, handle);
    if (made !== Code.OK) {
      const error = new PoolError('completion queue', made, library.lastError());
      library.clientDestroy(client);
      throw error;
    }
    return new ObjectClient(library, client, handle.readBigUInt64LE());
  }

  /** For connect() alone. */
  constructor(library, client, queue) {
    this.#library = library;
    this.#client = client;
    this.#queue = queue;
  }

  /** Which of `keys` (Buffers) are there: a code for each. Does not count as a use. */
  async exists(keys, options) {
    return (await this.#submit(this.#library.existsSubmit, keys, null, options)).codes;
  }

  /** Reads values into `buffers`, one for each key: {codes, lengths}. A buffer whose code is not OK is undefined. */
  get(keys, buffers, options) {
    return this.#submit(this.#library.getSubmit, keys, buffers, {verify: VERIFY_ALWAYS, ...options}, true);
  }

  /** Stores `buffers` under `keys`: a code for each. They must not change before it is done. */
  async put(keys, buffers, options) {
    return (await this.#submit(this.#library.putSubmit, keys, buffers, options)).codes;
  }

  /** Waits for what is under way, for its deadlines at most, and disconnects. */
  async close() {
    if (this.#closed) return;
    this.#closed = true;
    while (this.#pending.size > 0) await this.#waiting;
    await later(this.#library.cqDestroy, this.#queue);
    await later(this.#library.clientDestroy, this.#client);
  }

  // A batch that was not accepted is one whose items all have its code: callers know only codes.
  #submit(call, keys, buffers, options, wantsLengths = false) {
    const {koffi} = this.#library;
    if (this.#closed) return Promise.resolve(refused(keys.length, Code.CANCELLED));
    const memory = layOut(koffi, keys, buffers);
    const codes = Buffer.allocUnsafeSlow(4 * keys.length);
    // What ends before it began may leave codes as they are: nobody takes that for a success.
    for (let i = 0; i < keys.length; ++i) codes.writeInt32LE(Code.UNKNOWN, 4 * i);
    const lengths = wantsLengths ? Buffer.allocUnsafeSlow(8 * keys.length).fill(0) : null;
    const tag = this.#nextTag++;
    const last = wantsLengths ? [lengths] : [];
    const accepted = call(this.#queue, tag, memory.items, keys.length, this.#library.callOptions(options), codes, ...last);
    if (accepted !== Code.OK) return Promise.resolve(refused(keys.length, accepted));
    return new Promise((resolve) => {
      this.#pending.set(tag, {resolve, codes, lengths, memory});
      this.#waiting ??= this.#wait();
    });
  }

  async #wait() {
    const set = {fd: this.#library.cqFd(this.#queue), events: POLLIN, revents: 0};
    const completion = Buffer.allocUnsafeSlow(COMPLETION_BYTES);
    const count = Buffer.allocUnsafeSlow(8);
    while (this.#pending.size > 0) {
      await later(this.#library.poll, set, 1, POLL_MS).catch(() => setTimeout(NO_POLL_MS));
      for (;;) {
        this.#library.cqPoll(this.#queue, completion, 1, count);
        if (count.readBigUInt64LE() === 0n) break;
        this.#complete(completion.readBigUInt64LE(0));
      }
    }
    this.#waiting = null;
  }

  #complete(tag) {
    const {resolve, codes, lengths} = this.#pending.get(tag);
    this.#pending.delete(tag);
    const count = codes.length / 4;
    resolve({
      codes: Array.from({length: count}, (_, i) => codes.readInt32LE(4 * i)),
      lengths: lengths && Array.from({length: count}, (_, i) => Number(lengths.readBigUInt64LE(8 * i))),
    });
  }
}

function refused(count, code) {
  return {codes: new Array(count).fill(code), lengths: new Array(count).fill(0)};
}

/** ems_item of each key, and the pieces they point to. All of it must stay while the call is under way. */
function layOut(koffi, keys, buffers) {
  const items = Buffer.allocUnsafeSlow(8 * ITEM_WORDS * keys.length).fill(0);
  const iov = buffers && Buffer.allocUnsafeSlow(8 * IOV_WORDS * keys.length);
  const base = iov && koffi.address(iov);
  keys.forEach((key, i) => {
    const at = 8 * ITEM_WORDS * i;
    items.writeBigUInt64LE(koffi.address(key), at);
    items.writeBigUInt64LE(BigInt(key.length), at + 8);
    if (!buffers) return;
    const piece = 8 * IOV_WORDS * i;
    iov.writeBigUInt64LE(koffi.address(buffers[i]), piece);
    iov.writeBigUInt64LE(BigInt(buffers[i].length), piece + 8);
    items.writeBigUInt64LE(base + BigInt(piece), at + 16);
    items.writeBigUInt64LE(1n, at + 24);
  });
  return {items, iov, keys, buffers};
}
