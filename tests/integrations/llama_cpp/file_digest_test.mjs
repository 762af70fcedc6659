// Hashes of model files: remembered, and never those of a file that was.
import assert from 'node:assert/strict';
import crypto from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';

import {fileDigest, modelDigest, modelFiles} from '../../../integrations/llama_cpp/file_digest.mjs';

const sha256 = (text) => crypto.createHash('sha256').update(text).digest('hex');

function folder(t) {
  const made = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), 'ems-digest-')));
  t.after(() => fs.rmSync(made, {recursive: true}));
  return made;
}

test('it is the SHA-256 of the content', async (t) => {
  const file = path.join(folder(t), 'model.gguf');
  fs.writeFileSync(file, 'weights');
  assert.equal(await fileDigest(file, null), sha256('weights'));
});

test('a file that has just changed is not remembered', async (t) => {
  const here = folder(t);
  const [file, cache] = [path.join(here, 'model.gguf'), path.join(here, 'cache', 'digests.json')];
  fs.writeFileSync(file, 'weights');
  await fileDigest(file, cache);
  assert.ok(!fs.existsSync(cache));
});

test('what is remembered of another time, size or inode does not count', async (t) => {
  const here = folder(t);
  const [file, cache] = [path.join(here, 'model.gguf'), path.join(here, 'digests.json')];
  fs.writeFileSync(file, 'weights');
  fs.writeFileSync(cache, JSON.stringify({[file]: {identity: '1:2:3:4:5', digest: 'wrong'}}));
  assert.equal(await fileDigest(file, cache), sha256('weights'));
});

test('a settled file is read once', async (t) => {
  const cache = path.join(folder(t), 'digests.json');
  const file = process.execPath; // a file that nobody has changed lately
  const digest = await fileDigest(file, cache);
  const known = JSON.parse(fs.readFileSync(cache, 'utf8'));
  const [name] = Object.keys(known);
  assert.equal(known[name].digest, digest);
  known[name].digest = 'remembered';
  fs.writeFileSync(cache, JSON.stringify(known));
  assert.equal(await fileDigest(file, cache), 'remembered');
});

for (const broken of ['', '{', '[]', 'null', '7']) {
  test(`a memory that holds '${broken}' is none`, async (t) => {
    const here = folder(t);
    const [file, cache] = [path.join(here, 'model.gguf'), path.join(here, 'digests.json')];
    fs.writeFileSync(file, 'weights');
    fs.writeFileSync(cache, broken);
    assert.equal(await fileDigest(file, cache), sha256('weights'));
  });
}

test('all files of a split model count', async (t) => {
  const here = folder(t);
  const first = path.join(here, 'm-00001-of-00002.gguf');
  assert.deepEqual(modelFiles(first), [first, path.join(here, 'm-00002-of-00002.gguf')]);
  fs.writeFileSync(first, 'a');
  await assert.rejects(modelDigest(first, null), /ENOENT/);
  fs.writeFileSync(modelFiles(first)[1], 'b');
  const before = await modelDigest(first, null);
  fs.writeFileSync(modelFiles(first)[1], 'c');
  assert.notEqual(await modelDigest(first, null), before);
});
