// Options of the cache: what would end the process in C, or never hit without a word, is refused first.
import assert from 'node:assert/strict';
import test from 'node:test';

import {DEFAULTS, checkedOptions} from '../../../integrations/llama_cpp/cache_options.mjs';

const NOT_TEXT = [5, true, {}, [], null, Symbol('s'), 'a\0b'];
const NOT_A_TIME = ['100', 'abc', null, NaN, Infinity, -1, 0, 1.5, 2 ** 32, 100n, true, {}, []];
const WRONG = {
  library: [...NOT_TEXT, ''],
  controller: [...NOT_TEXT, ''],
  namespace: [...NOT_TEXT, ''],
  shmToken: [3, {}, 'a\0b'],
  lora: [null, 'a.gguf', {}, [{}], ['a.gguf'], [{path: 5}], [{path: 'a', scale: '1'}], [{path: 'a', scale: NaN}], [null]],
  cacheSalt: [null, 7],
  stepTokens: [0, 64.5, '64', null],
  restTokensMin: [0, '64'],
  saveEveryTokens: [-64, '512', null],
  durability: ['tape', 'toString', null, 1],
  partBytes: [(4 << 20) + 1, 1 << 15, 2 ** 31, '4194304', NaN],
  savesMax: [-1, 'x', NaN, null],
  lookupTimeoutMs: [...NOT_A_TIME, 30_001],
  loadTimeoutMs: NOT_A_TIME,
  saveTimeoutMs: NOT_A_TIME,
  startTimeoutMs: [...NOT_A_TIME, 60_001],
  reconnectMs: [-1, 'x', null, NaN],
  digestCache: [5, '', {}],
  koffi: [5, {}, 'koffi'],
};

test('every option has values that it does not take', () => {
  assert.deepEqual(Object.keys(WRONG).sort(), Object.keys(DEFAULTS).sort());
});

for (const [option, values] of Object.entries(WRONG)) {
  test(`a wrong ${option} is refused before it reaches C`, () => {
    for (const value of values) {
      assert.throws(() => checkedOptions({[option]: value}), {name: 'TypeError', message: new RegExp(`^${option}: `)});
    }
  });
}

test('defaults are what they should be, also for undefined', () => {
  assert.deepEqual(checkedOptions({}), DEFAULTS);
  assert.deepEqual(checkedOptions({lookupTimeoutMs: undefined, cacheSalt: undefined}), DEFAULTS);
});

test('an option that nobody knows is refused', () => {
  assert.throws(() => checkedOptions({stepToken: 64}), /no option stepToken/);
  assert.throws(() => checkedOptions({toString: 1}), /no option toString/);
});

test('what is saved on the way is looked up, too', () => {
  assert.throws(() => checkedOptions({saveEveryTokens: 100}), /no multiple/);
  assert.equal(checkedOptions({saveEveryTokens: 0, stepTokens: 48}).saveEveryTokens, 0);
});
