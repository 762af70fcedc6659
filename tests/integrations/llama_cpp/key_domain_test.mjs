// Keys of prefixes: the same for the same, others for anything that differs.
import assert from 'node:assert/strict';
import test from 'node:test';

import {KeyDomain, domainOf} from '../../../integrations/llama_cpp/key_domain.mjs';

const tokens = Array.from({length: 200}, (_, i) => 7 * i);
const names = (domain, list = tokens) => domain.checkpoints(list, 64).map(({key}) => key.toString());

function engine(changes = {}) {
  const context = {kvCacheKeyType: 1, kvCacheValueType: 1, flashAttention: true, _swaFullCache: false, ...changes.context};
  const llama = {llamaCppRelease: {repo: 'r', release: '1'}, buildType: 'prebuilt', gpu: false, ...changes.llama};
  return new KeyDomain(domainOf({llama, context, modelDigest: 'd', lora: [], cacheSalt: '', ...changes.own}));
}

test('checkpoints lie at multiples of the step', () => {
  assert.deepEqual(engine().checkpoints(tokens, 64).map((one) => one.tokens), [64, 128, 192]);
  assert.deepEqual(engine().checkpoints(tokens.slice(0, 63), 64), []);
});

test('the order of fields does not matter', () => {
  assert.deepEqual(names(new KeyDomain({a: 1, b: 2})), names(new KeyDomain({b: 2, a: 1})));
});

test('a prefix has the key that it has in a longer prompt', () => {
  assert.deepEqual(names(engine()).slice(0, 2), names(engine(), tokens.slice(0, 130)));
});

test('a token that differs changes its own checkpoint and all behind it', () => {
  const other = tokens.map((token, i) => (i === 100 ? 1 : token));
  const [first, ...behind] = names(engine(), other);
  assert.equal(first, names(engine())[0]);
  for (const key of behind) assert.ok(!names(engine()).includes(key));
});

for (const [what, changes] of Object.entries({
  'KV type': {context: {kvCacheKeyType: 8}},
  'value type': {context: {kvCacheValueType: 8}},
  'flash attention': {context: {flashAttention: false}},
  'full SWA cache': {context: {_swaFullCache: true}},
  release: {llama: {llamaCppRelease: {repo: 'r', release: '2'}}},
  device: {llama: {gpu: 'cuda'}},
  'kind of build': {llama: {buildType: 'localBuild'}},
  model: {own: {modelDigest: 'e'}},
  adapter: {own: {lora: [{digest: 'l', scale: 1}]}},
  salt: {own: {cacheSalt: 's'}},
})) {
  test(`another ${what} shares no key`, () => {
    const shared = new Set(names(engine()));
    assert.ok(names(engine(changes)).every((key) => !shared.has(key)));
    assert.notDeepEqual(engine(changes).part('0'), engine().part('0'));
  });
}

test('the scale of an adapter counts', () => {
  const scaled = (scale) => names(engine({own: {lora: [{digest: 'l', scale}]}}));
  assert.notDeepEqual(scaled(1), scaled(0.5));
});
