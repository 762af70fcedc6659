// The set of a context's sequences whose KV was shifted: where the engine erased tokens in the middle (a context shift does), the
// KV of later tokens still depends on the erased ones. It is not the KV of the tokens that the sequence has now and must not be
// saved. A state that the application loads from a file of its own may have been shifted before it was saved: it counts as
// shifted.
//
// Invariant: a sequence that is not in the set was computed from its tokens alone, or restored by the cache. Threading: that of
// JavaScript.

export class ShiftedSequences {
  #native;
  #shifted = new Set(); // ids of sequences

  /** Watches `context` from now on. What it holds already counts as shifted. Throws TypeError when it cannot be watched. */
  constructor(context) {
    this.#native = context._ctx;
    for (const name of ['shiftSequenceTokenCells', 'copySequenceStateFromOtherSequence', 'loadSequenceStateFromFile',
      'getSequenceKvCacheMinPosition']) {
      if (typeof this.#native?.[name] !== 'function') {
        throw new TypeError('this node-llama-cpp does not say when a context shift happens, or a load');
      }
    }
    this.#before('shiftSequenceTokenCells', (sequence) => this.#shifted.add(sequence));
    this.#before('copySequenceStateFromOtherSequence', (to, from) => this.#shifted.has(from) && this.#shifted.add(to));
    this.#before('loadSequenceStateFromFile', (path, sequence) => this.#shifted.add(sequence));
    for (let sequence = 0; sequence < context.totalSequences; ++sequence) {
      if (this.#native.getSequenceKvCacheMinPosition(sequence) >= 0) this.#shifted.add(sequence);
    }
  }

  // Nothing of the library tells of it; the object is this context's alone.
  #before(name, look) {
    const call = this.#native[name];
    const watched = function watched(...values) {
      look(...values);
      return call.apply(this, values);
    };
    Object.defineProperty(this.#native, name, {value: watched, configurable: true, writable: true});
  }

  has(sequence) {
    if (sequence.nextTokenIndex === 0) this.forget(sequence);
    return this.#shifted.has(sequence._sequenceId);
  }

  /** The cache restored a state of its own into it: after that load, which counts as a shift like any other. */
  forget(sequence) {
    this.#shifted.delete(sequence._sequenceId);
  }
}
