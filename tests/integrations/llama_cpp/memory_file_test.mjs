// A file without a disk: what is written through its name is read here, and the other way round.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import {createRequire} from 'node:module';
import test from 'node:test';

import {MemoryFile} from '../../../integrations/llama_cpp/memory_file.mjs';

const koffi = createRequire(import.meta.url)('koffi');

test('bytes come back through the name', async () => {
  const file = new MemoryFile(koffi);
  await file.write(0, Buffer.from('hello'));
  await file.write(5, Buffer.from(' there'));
  assert.equal(fs.readFileSync(file.path, 'utf8'), 'hello there');
  fs.writeFileSync(file.path, 'another');
  assert.equal(file.size, 7);
  assert.equal((await file.read(2, 5)).toString(), 'other');
  await file.close();
});

test('what is beyond the end is not made up', async () => {
  const file = new MemoryFile(koffi);
  await file.write(0, Buffer.from('abc'));
  await assert.rejects(file.read(1, 3), /ends at 3, before 4/);
  await file.close();
});

test('it is gone when it is closed, and closing twice is fine', async () => {
  const before = fs.readdirSync('/proc/self/fd').length;
  const file = new MemoryFile(koffi);
  await file.close();
  await file.close();
  assert.equal(fs.readdirSync('/proc/self/fd').length, before);
});
