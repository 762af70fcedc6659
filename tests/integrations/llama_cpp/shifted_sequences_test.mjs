// Which sequences were shifted: from the call on that moves their KV, until they are empty or restored.
// A load is as a shift.
import assert from 'node:assert/strict';
import test from 'node:test';

import {ShiftedSequences} from '../../../integrations/llama_cpp/shifted_sequences.mjs';

function contextOf({filled = []} = {}) {
  const calls = [];
  const _ctx = {
    shiftSequenceTokenCells: (...values) => calls.push(values),
    copySequenceStateFromOtherSequence: async (to, from) => `${from} to ${to}`,
    loadSequenceStateFromFile: async (path, sequence, contextSize) => [path, sequence, contextSize],
    getSequenceKvCacheMinPosition: (sequence) => (filled.includes(sequence) ? 0 : -1),
  };
  return {_ctx, totalSequences: 3, calls};
}

const sequence = (id, nextTokenIndex = 10) => ({_sequenceId: id, nextTokenIndex});

test('a shift counts, of the sequence alone, and happens as before', () => {
  const context = contextOf();
  const shifted = new ShiftedSequences(context);
  assert.ok(!shifted.has(sequence(1)));
  context._ctx.shiftSequenceTokenCells(1, 5, 10, -4);
  assert.deepEqual(context.calls, [[1, 5, 10, -4]]);
  assert.deepEqual([0, 1, 2].map((id) => shifted.has(sequence(id))), [false, true, false]);
});

test('a sequence that is empty, or restored, is not shifted any more', () => {
  const context = contextOf();
  const shifted = new ShiftedSequences(context);
  for (const id of [0, 1]) context._ctx.shiftSequenceTokenCells(id, 5, 10, -4);
  assert.ok(!shifted.has(sequence(0, 0)));
  assert.ok(!shifted.has(sequence(0)));
  shifted.forget(sequence(1));
  assert.ok(!shifted.has(sequence(1)));
});

test('a copy of a shifted sequence is one', async () => {
  const context = contextOf();
  const shifted = new ShiftedSequences(context);
  context._ctx.shiftSequenceTokenCells(0, 5, 10, -4);
  assert.equal(await context._ctx.copySequenceStateFromOtherSequence(2, 0), '0 to 2');
  await context._ctx.copySequenceStateFromOtherSequence(0, 1);
  assert.deepEqual([0, 1, 2].map((id) => shifted.has(sequence(id))), [true, false, true]);
});

test('what is loaded may have been shifted before', async () => {
  const context = contextOf();
  const shifted = new ShiftedSequences(context);
  const loading = context._ctx.loadSequenceStateFromFile('/file', 1, 1024);
  assert.ok(shifted.has(sequence(1)));
  assert.deepEqual(await loading, ['/file', 1, 1024]);
  assert.deepEqual([0, 1, 2].map((id) => shifted.has(sequence(id))), [false, true, false]);
  shifted.forget(sequence(1));
  assert.ok(!shifted.has(sequence(1)));
});

test('a load that fails leaves a sequence shifted until it is empty', async () => {
  const context = contextOf();
  context._ctx.loadSequenceStateFromFile = async () => { throw new Error('no such file'); };
  const shifted = new ShiftedSequences(context);
  await assert.rejects(context._ctx.loadSequenceStateFromFile('/file', 1, 1024), /no such file/);
  assert.ok(shifted.has(sequence(1)));
  assert.ok(!shifted.has(sequence(1, 0)));
});

test('what a sequence held before nobody knows', () => {
  const shifted = new ShiftedSequences(contextOf({filled: [1]}));
  assert.deepEqual([0, 1, 2].map((id) => shifted.has(sequence(id))), [false, true, false]);
});

test('two caches of a context both see it', () => {
  const context = contextOf();
  const both = [new ShiftedSequences(context), new ShiftedSequences(context)];
  context._ctx.shiftSequenceTokenCells(0, 5, 10, -4);
  assert.deepEqual(both.map((one) => one.has(sequence(0))), [true, true]);
});

test('a library that does not tell is refused', () => {
  assert.throws(() => new ShiftedSequences({_ctx: {}, totalSequences: 1}), /context shift/);
  assert.throws(() => new ShiftedSequences({totalSequences: 1}), /context shift/);
  for (const name of Object.keys(contextOf()._ctx)) {
    const context = contextOf();
    delete context._ctx[name];
    assert.throws(() => new ShiftedSequences(context), /context shift/, name);
  }
});
