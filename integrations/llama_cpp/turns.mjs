// Work that is done one after another, in the order in which it came.
//
// Bound: waitingMax wait while one runs; more are refused. Threading: that of JavaScript.
import {Refused} from './refused.mjs';

export class Turns {
  #waitingMax;
  #waiting = new Set(); // {begin, refuse} of each, the first one first
  #isTaken = false;
  #isClosed = false;
  #onFree = () => {};

  constructor(waitingMax) {
    this.#waitingMax = waitingMax;
  }

  /** Throws Refused: 503  what comes now is not done: too many wait, or these turns are closed. */
  check() {
    if (this.#isClosed) throw new Refused(503, 'the server is ending');
    if (this.#waiting.size >= this.#waitingMax) throw new Refused(503, `${this.#waiting.size} completions wait already`);
  }

  /**
   * What `work` returns, called when that before it is done. signal: ends the wait, at once, with its reason; work that has begun
   * looks at it itself. Throws what check() and work throw.
   */
  async take(work, signal) {
    this.check();
    signal?.throwIfAborted();
    if (this.#isTaken) await this.#wait(signal);
    this.#isTaken = true;
    try {
      return await work();
    } finally {
      this.#passOn();
    }
  }

  /** Refuses those that wait; returns when what runs is done. */
  async close() {
    this.#isClosed = true;
    for (const {refuse} of this.#waiting) refuse(new Refused(503, 'the server is ending'));
    this.#waiting.clear();
    if (this.#isTaken) await new Promise((resolve) => { this.#onFree = resolve; });
  }

  #wait(signal) {
    return new Promise((begin, refuse) => {
      const one = {begin, refuse};
      this.#waiting.add(one);
      signal?.addEventListener('abort', () => {
        if (this.#waiting.delete(one)) refuse(signal.reason);
      }, {once: true});
    });
  }

  /** The turn stays taken in between, so that nobody who comes now is before the next one. */
  #passOn() {
    const [next] = this.#waiting;
    if (next === undefined) {
      this.#isTaken = false;
      this.#onFree();
      return;
    }
    this.#waiting.delete(next);
    next.begin();
  }
}
