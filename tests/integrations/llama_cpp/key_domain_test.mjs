// Keys of prefixes: the same for the same, others for anything that differs.
import assert from 'node:assert/strict';
import test from 'node:test';

import {KeyDomain, domainOf, environmentOf, metadataDigest} from '../../../integrations/llama_cpp/key_domain.mjs';

const tokens = Array.from({length: 200}, (_, i) => 7 * i);
const names = (domain, list = tokens) => domain.checkpoints(list, 64).map(({key}) => key.toString());

/** Metadata as node-llama-cpp has it, of a file and with overrides. */
const metadata = (changes = {}) => ({general: {architecture: 'llama'}, llama: {rope: {freq_base: 10000, ...changes}}});

function contextOf(changes = {}) {
  const llama = {
    llamaCppRelease: {repo: 'r', release: '1'}, buildType: 'prebuilt', cmakeOptions: {}, gpu: false, systemInfo: 'CPU : AVX2 = 1',
    ...changes.llama,
  };
  const model = {llama, gpuLayers: 0, fileInfo: {metadata: metadata(), fullTensorInfo: []}, ...changes.model};
  return {
    model, kvCacheKeyType: 1, kvCacheValueType: 1, flashAttention: true, _swaFullCache: false, totalSequences: 1, batchSize: 512,
    getAllocatedContextSize: () => 2048, ...changes.context,
  };
}

function engine(changes = {}) {
  const context = contextOf(changes);
  return new KeyDomain(domainOf({context, devices: [], modelDigest: 'd', lora: [], cacheSalt: '', ...changes.own}));
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
  'way to choose flash attention': {context: {flashAttention: 'auto'}},
  'full SWA cache': {context: {_swaFullCache: true}},
  'number of sequences': {context: {totalSequences: 2}},
  'batch size': {context: {batchSize: 32}},
  release: {llama: {llamaCppRelease: {repo: 'r', release: '2'}}},
  repository: {llama: {llamaCppRelease: {repo: 's', release: '1'}}},
  device: {llama: {gpu: 'cuda'}},
  'name of a device': {own: {devices: ['another GPU']}},
  'set of kernels': {llama: {systemInfo: 'CPU : AVX2 = 1 | AVX512 = 1'}},
  'number of layers on the GPU': {model: {gpuLayers: 3}},
  'kind of build': {llama: {buildType: 'localBuild'}},
  'option of the build': {llama: {cmakeOptions: {GGML_CUDA_F16: '1'}}},
  'value of the metadata': {model: {fileInfo: {metadata: metadata({freq_base: 500000}), fullTensorInfo: []}}},
  'value more in the metadata': {model: {fileInfo: {metadata: metadata({scale_linear: 4}), fullTensorInfo: []}}},
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

for (const changes of [
  {context: {kvCacheKeyType: undefined}}, {context: {kvCacheValueType: undefined}}, {context: {flashAttention: undefined}},
  {context: {_swaFullCache: undefined}}, {context: {totalSequences: undefined}}, {context: {batchSize: undefined}},
  {llama: {llamaCppRelease: undefined}}, {llama: {buildType: undefined}}, {llama: {cmakeOptions: undefined}},
  {llama: {systemInfo: undefined}}, {model: {gpuLayers: undefined}}, {model: {fileInfo: {metadata: undefined, fullTensorInfo: []}}},
  {model: {fileInfo: {metadata: metadata()}}},
]) {
  test(`what the engine does not say is not guessed: ${JSON.stringify(changes, (_, value) => value ?? null)}`, () => {
    assert.throws(() => engine(changes), /does not say/);
  });
}

test('the size of the context counts where it chooses the RoPE factors', () => {
  const sized = (size, sequences, tensors) => names(engine({
    context: {totalSequences: sequences, getAllocatedContextSize: () => size},
    model: {fileInfo: {metadata: metadata(), fullTensorInfo: tensors.map((name) => ({name}))}},
  }));
  const [plain, both] = [['blk.0.attn_q.weight'], ['rope_factors_long.weight', 'rope_factors_short.weight']];
  assert.deepEqual(sized(4096, 1, plain), sized(8192, 1, plain));
  assert.notDeepEqual(sized(4096, 1, both), sized(8192, 1, both));
  assert.notDeepEqual(sized(8192, 1, both), sized(8192, 2, both));
});

test('variables that llama.cpp reads count, those of its programs do not', () => {
  const variables = {
    PATH: '/bin', LLAMA_ATTN_ROT_DISABLE: '1', GGML_CPU_DISABLE_FUSION: '1', LLAMA_ARG_PORT: '1', LLAMA_API_KEY: 'k',
  };
  assert.deepEqual(environmentOf(variables), [['GGML_CPU_DISABLE_FUSION', '1'], ['LLAMA_ATTN_ROT_DISABLE', '1']]);
});

test('neither order nor nesting of metadata matters, types do', () => {
  const digest = metadataDigest({a: {b: 1, c: 'x'}, d: [1, 2]});
  assert.equal(metadataDigest({d: [1, 2], 'a.c': 'x', a: {b: 1}}), digest);
  for (const other of [{a: {b: '1', c: 'x'}, d: [1, 2]}, {a: {b: 1n, c: 'x'}, d: [1, 2]}, {a: {b: true, c: 'x'}, d: [1, 2]},
    {a: {b: 1, c: 'x'}, d: [2, 1]}, {a: {b: 1, c: 'x'}, d: [1, 2n]}]) {
    assert.notEqual(metadataDigest(other), digest);
  }
});

test('metadata that is said in two ways is refused', () => {
  assert.throws(() => metadataDigest({'a.b': 1, a: {b: 2}}), /a\.b is said in two ways/);
});
