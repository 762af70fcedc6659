// ems-llama-ttft over servers that fail: its own process says so, and none of theirs is left.
import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {text} from 'node:stream/consumers';
import test from 'node:test';
import {fileURLToPath} from 'node:url';

const PROGRAM = fileURLToPath(new URL('../../../integrations/llama_cpp/ttft.mjs', import.meta.url));

/** Runs the program beside a server that does `onRequest` with each one; returns its code, what it says, whether the server is left. */
async function run(t, onRequest) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'ems-ttft-'));
  t.after(() => fs.rmSync(folder, {recursive: true}));
  fs.copyFileSync(PROGRAM, path.join(folder, 'ttft.mjs'));
  const pidFile = path.join(folder, 'pid');
  fs.writeFileSync(path.join(folder, 'server.mjs'), `
    import fs from 'node:fs';
    import http from 'node:http';
    fs.writeFileSync(${JSON.stringify(pidFile)}, String(process.pid));
    const server = http.createServer((request, response) => { ${onRequest} });
    server.listen(0, '127.0.0.1', () => console.log('listening on http://127.0.0.1:' + server.address().port));
  `);
  const program = spawn(process.execPath, [path.join(folder, 'ttft.mjs'), '--model', 'm'], {stdio: ['ignore', 'ignore', 'pipe']});
  const said = text(program.stderr);
  const [code] = await once(program, 'exit');
  const pid = Number(fs.readFileSync(pidFile, 'utf8'));
  let isLeft = true;
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    isLeft = false;
  }
  return {code, said: await said, isLeft};
}

test('a server that refuses the prompt is ended', async (t) => {
  const {code, said, isLeft} = await run(t, `
    response.writeHead(400);
    response.end(JSON.stringify({error: {message: 'the context takes 511'}}));`);
  assert.equal(isLeft, false);
  assert.equal(code, 1);
  assert.match(said, /the context takes 511/);
});

test('a server that was killed is not waited for', async (t) => {
  const {code, said} = await run(t, "process.kill(process.pid, 'SIGKILL');");
  assert.equal(code, 1);
  assert.match(said, /fetch failed/);
});
