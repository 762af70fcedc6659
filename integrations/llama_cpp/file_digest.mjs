// SHA-256 of model files, remembered: a file of many gigabytes is read once, and again only when it has changed.
//
// A file is the same while path, inode, size, and the times of its content and of its inode are. The times' resolution is the
// kernel's tick, so what was changed within the last seconds is hashed again.
import crypto from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const SETTLED_NS = 2_000_000_000n;
const ENTRIES_MAX = 1000;
const READ_BYTES = 4 << 20;

/** Where digests are kept unless a caller says otherwise. */
export function defaultDigestCache() {
  const base = process.env.XDG_CACHE_HOME || path.join(os.homedir(), '.cache');
  return path.join(base, 'ems', 'file_digests.json');
}

/** The files of a model: the one, or all parts of a split GGUF, in order. */
export function modelFiles(file) {
  const split = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/.exec(file);
  if (split === null) return [file];
  const [, stem, , count] = split;
  return Array.from({length: Number(count)}, (_, i) => `${stem}-${String(i + 1).padStart(5, '0')}-of-${count}.gguf`);
}

/** The digest of a model of one or more files, in hex. Throws when a file cannot be read or changes meanwhile. */
export async function modelDigest(file, cachePath = defaultDigestCache()) {
  const digests = [];
  for (const part of modelFiles(file)) digests.push(await fileDigest(part, cachePath));
  return digests.length === 1 ? digests[0] : crypto.createHash('sha256').update(digests.join()).digest('hex');
}

/** The digest of a file, in hex. `cachePath` null: nothing is remembered. */
export async function fileDigest(file, cachePath = defaultDigestCache()) {
  const real = await fs.promises.realpath(file);
  const before = await identity(real);
  const known = await load(cachePath);
  const entry = known[real];
  if (entry?.identity === before.text && before.settled) return entry.digest;
  const hash = crypto.createHash('sha256');
  for await (const piece of fs.createReadStream(real, {highWaterMark: READ_BYTES})) hash.update(piece);
  const digest = hash.digest('hex');
  if ((await identity(real)).text !== before.text) throw new Error(`${file} changed while it was read`);
  if (before.settled) await store(cachePath, real, {identity: before.text, digest});
  return digest;
}

async function identity(file) {
  const stat = await fs.promises.stat(file, {bigint: true});
  const newest = stat.mtimeNs > stat.ctimeNs ? stat.mtimeNs : stat.ctimeNs;
  return {
    text: [stat.dev, stat.ino, stat.size, stat.mtimeNs, stat.ctimeNs].join(':'),
    settled: BigInt(Date.now()) * 1_000_000n - newest > SETTLED_NS,
  };
}

async function load(cachePath) {
  if (cachePath === null) return {};
  try {
    const known = JSON.parse(await fs.promises.readFile(cachePath, 'utf8'));
    return known !== null && typeof known === 'object' && !Array.isArray(known) ? known : {};
  } catch {
    return {}; // none yet, or not ours: it is written again
  }
}

// A memory that cannot be written costs time at the next start, no more.
async function store(cachePath, file, entry) {
  if (cachePath === null) return;
  const known = Object.entries(await load(cachePath)).filter(([name]) => name !== file).slice(1 - ENTRIES_MAX);
  const draft = `${cachePath}.${process.pid}`;
  try {
    await fs.promises.mkdir(path.dirname(cachePath), {recursive: true, mode: 0o700});
    await fs.promises.writeFile(draft, JSON.stringify(Object.fromEntries([...known, [file, entry]])), {mode: 0o600});
    await fs.promises.rename(draft, cachePath);
  } catch {
    await fs.promises.rm(draft, {force: true}).catch(() => {});
  }
}
