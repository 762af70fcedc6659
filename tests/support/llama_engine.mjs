// An engine process for tests and benchmarks: node-llama-cpp with the prompt cache, driven line by line.
//
//   node llama_engine.mjs '{"model": FILE, "cache": {…} | null, "kvType": "F16", "contextSize": 2560, "threads": 1, …}'
//
// Says {"ready": …}, then answers each line of standard input with one line:
//   {"tokens": […], "generate": N, "cache": true}  → {"ttftMs", "tokens", "cachedTokens", …}: greedy, from an empty sequence
//     unless "keep"; "cache" false: without looking or saving
//   {"flush": true} → {}     {"stats": true} → the cache's counters     {"held": true} → {"tokens"}: what the sequence holds
//   {"saveState": FILE} → {}     {"loadState": FILE} → {}: by the library itself, as an application does
//   {"killAtManifest": PID} → {}: kills that process when the next save has stored its parts, and lists them
//   {"damage": HOW, "of": […]} → {"states": N}: spoils what the pool has of prefixes of these tokens; `damages` lists how
import crypto from 'node:crypto';
import readline from 'node:readline';

import koffi from 'koffi';
import {LlamaLogLevel, getLlama} from 'node-llama-cpp';

import {Code, EmsLibrary, Flag} from '../../integrations/llama_cpp/ems_library.mjs';
import {modelDigest} from '../../integrations/llama_cpp/file_digest.mjs';
import {PromptCache} from '../../integrations/llama_cpp/index.mjs';
import {KeyDomain, domainOf} from '../../integrations/llama_cpp/key_domain.mjs';
import {MemoryFile} from '../../integrations/llama_cpp/memory_file.mjs';
import {ObjectClient} from '../../integrations/llama_cpp/object_client.mjs';
import {StateStore} from '../../integrations/llama_cpp/state_store.mjs';

const settings = JSON.parse(process.argv[2]);
const llama = await getLlama({gpu: false, build: 'never', skipDownload: true, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: settings.model, metadataOverrides: settings.metadataOverrides});
const context = await model.createContext({
  contextSize: settings.contextSize ?? 2560,
  batchSize: settings.batchSize ?? 512,
  sequences: settings.sequences,
  lora: settings.lora && {adapters: settings.lora},
  threads: settings.threads ?? 1,  // more of them spin for each other where tests share the cores
  flashAttention: settings.flashAttention ?? true,
  experimentalKvCacheKeyType: settings.kvType ?? 'F16',
  experimentalKvCacheValueType: settings.kvType ?? 'F16',
});
const sequence = context.getSequence({contextShift: settings.contextShift});
let cache = null;
try {
  cache = settings.cache && await PromptCache.open({
    context, modelPath: settings.model, koffi, ...settings.cache,
  });
} catch (error) {
  console.log(JSON.stringify({error: String(error)}));
  process.exit(1);
}

// The longest time that the event loop did not run for, of all prompts with the cache.
let blockedMs = 0;
let last = performance.now();
setInterval(() => {
  const now = performance.now();
  blockedMs = Math.max(blockedMs, now - last - 1);
  last = now;
}, 1).unref();

async function run({tokens, generate = 8, cache: cached = true, keep = false}) {
  if (!keep) await sequence.clearHistory();
  const start = performance.now();
  const prefilled = cached && cache ? await cache.prefill(sequence, tokens) : null;
  const {rest, ...figures} = prefilled ?? {rest: tokens};
  if (!prefilled && keep) throw new Error('keep is for prompts with the cache');
  const answer = [];
  let ttftMs = null;
  for await (const token of sequence.evaluate(rest, {temperature: 0})) {
    ttftMs ??= performance.now() - start;
    answer.push(token);
    if (answer.length >= generate) break;
  }
  return {ttftMs, tokens: answer, ...figures};
}

const TIMES = {lookupTimeoutMs: 5000, loadTimeoutMs: 30_000, saveTimeoutMs: 30_000, durability: 'default'};

/** How a state is spoilt: each gets {client, domain, store, checkpoint, manifest, file}, and overwrites what it likes. */
const damages = {
  async flip({client, domain, manifest, file}) {
    const part = await file.read(0, Math.min(manifest.partBytes, manifest.bytes));
    part[part.length - 1] ^= 1;
    return put(client, domain.part(manifest.parts[0]), part);
  },
  async shorten({client, domain, manifest, file}) {
    return put(client, domain.part(manifest.parts[0]), await file.read(0, 1000));
  },
  async manifest({client, checkpoint}) {
    return put(client, checkpoint.key, Buffer.from('{"tokens": 64, "parts": "none"}'));
  },
  // A part that is its own digest's, of a state that ends early.
  async truncate({client, domain, checkpoint, manifest, file}) {
    const half = await file.read(0, Math.floor(manifest.bytes / 2));
    const digest = crypto.createHash('sha256').update(half).digest('hex');
    const stored = await put(client, domain.part(digest), half);
    if (stored !== Code.OK) return stored;
    return put(client, checkpoint.key, Buffer.from(JSON.stringify({...manifest, parts: [digest]})));
  },
  async otherTokens({store, checkpoint, manifest, file}) {
    const other = new MemoryFile(koffi);
    await other.write(0, await file.read(0, manifest.bytes));
    await other.write(12, Buffer.from(Int32Array.of(301, 302).buffer));
    return store.save(checkpoint, other, manifest.bytes);
  },
};

async function put(client, key, value) {
  return (await client.put([key], [value], {timeout_ms: 5000, flags: Flag.OVERWRITE}))[0];
}

async function damage(how, tokens) {
  const library = new EmsLibrary(koffi, settings.cache.library);
  const client = await ObjectClient.connect(library, {
    controller: settings.cache.controller, namespace: 'default', shmToken: null, startTimeoutMs: 5000,
  });
  const digest = await modelDigest(settings.model, null);
  const domain = new KeyDomain(domainOf({context, devices: [], modelDigest: digest, lora: [], cacheSalt: ''}));
  const store = new StateStore(client, domain, 4 << 20, TIMES);
  const checkpoints = domain.checkpoints(tokens, 64);
  const codes = await store.lookup(checkpoints);
  const found = checkpoints.filter((_, i) => codes[i] === Code.OK);
  for (const checkpoint of found) {
    const file = new MemoryFile(koffi);
    if (await store.loadLongest([checkpoint], tokens, file) === null) throw new Error('a state is spoilt already');
    const room = Buffer.alloc(256 << 10);
    const {lengths} = await client.get([checkpoint.key], [room], {timeout_ms: 5000});
    const manifest = JSON.parse(room.toString('utf8', 0, lengths[0]));
    const code = await damages[how]({client, domain, store, checkpoint, manifest, file});
    if (code !== Code.OK) throw new Error(`${how}: code ${code}`);
  }
  await client.close();
  return {states: found.length};
}

function killAtManifest(pid) {
  const {put: stored} = ObjectClient.prototype;
  ObjectClient.prototype.put = function putOrKill(keys, ...more) {
    if (keys[0].includes('/prefix/')) {
      ObjectClient.prototype.put = stored;
      process.kill(pid, 'SIGKILL');
    }
    return stored.call(this, keys, ...more);
  };
  return {};
}

async function answerTo(command) {
  if (command.killAtManifest) return killAtManifest(command.killAtManifest);
  if (command.damage) return damage(command.damage, command.of);
  if (command.tokens) return run(command);
  if (command.held) return {tokens: sequence.contextTokens};
  if (command.saveState) {
    await sequence.saveStateToFile(command.saveState);
    return {};
  }
  if (command.loadState) {
    await sequence.loadStateFromFile(command.loadState, {acceptRisk: true});
    return {};
  }
  if (command.flush) {
    await cache.flush();
    return {};
  }
  return {...cache.stats, connected: cache.connected, blockedMs};
}

console.log(JSON.stringify({ready: true, release: llama.llamaCppRelease.release}));
for await (const line of readline.createInterface({input: process.stdin})) {
  let answer;
  try {
    answer = await answerTo(JSON.parse(line));
  } catch (error) {
    answer = {error: String(error?.stack ?? error)};
  }
  console.log(JSON.stringify(answer));
}
await cache?.close();
await context.dispose();
await model.dispose();
await llama.dispose();
