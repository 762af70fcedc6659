// The queue in front of the engine: order, bound, clients that go while they wait, the end.
import assert from 'node:assert/strict';
import test from 'node:test';

import {Turns} from '../../../integrations/llama_cpp/turns.mjs';

/** Work that ends when it is told to, and says when it began. */
class Work {
  begun = false;

  constructor() {
    this.isOver = new Promise((resolve) => { this.end = resolve; });
    this.run = async () => {
      this.begun = true;
      await this.isOver;
    };
  }
}

const settled = () => new Promise(setImmediate); // all that can run has run

test('work is done one after another, also behind one that failed', async () => {
  const turns = new Turns(4);
  const said = [];
  const failed = turns.take(async () => { throw new Error('no memory'); });
  const rest = [1, 2, 3].map((number) => turns.take(async () => {
    said.push(number);
    await settled();
    said.push(-number);
  }));
  await assert.rejects(failed, /no memory/);
  await Promise.all(rest);
  assert.deepEqual(said, [1, -1, 2, -2, 3, -3]);
});

test('more than may wait are refused', async () => {
  const turns = new Turns(1);
  const first = new Work();
  const all = [turns.take(first.run), turns.take(async () => {})];
  assert.throws(() => turns.check(), {code: 503});
  await assert.rejects(turns.take(async () => {}), {code: 503});
  first.end();
  await Promise.all(all);
  turns.check();
});

test('who goes while it waits leaves its place at once, and its work is not done', async () => {
  const turns = new Turns(1);
  const [first, gone, next] = [new Work(), new Work(), new Work()];
  const running = turns.take(first.run);
  const client = new AbortController();
  const left = assert.rejects(turns.take(gone.run, client.signal), {name: 'AbortError'});
  client.abort();
  await left;
  const waiting = turns.take(next.run);
  first.end();
  next.end();
  await Promise.all([running, waiting]);
  assert.deepEqual([gone.begun, next.begun], [false, true]);
  await assert.rejects(turns.take(gone.run, client.signal), {name: 'AbortError'});
});

test('the end waits for what runs alone, and nothing begins behind it', async () => {
  const turns = new Turns(4);
  const [first, second] = [new Work(), new Work()];
  const running = turns.take(first.run);
  const refused = assert.rejects(turns.take(second.run), {code: 503});
  let isClosed = false;
  const closed = turns.close().then(() => { isClosed = true; });
  await refused;
  await assert.rejects(turns.take(second.run), {code: 503});
  await settled();
  assert.equal(isClosed, false);
  first.end();
  await Promise.all([running, closed]);
  assert.throws(() => turns.check(), {code: 503});
  assert.equal(second.begun, false);
});
