#!/usr/bin/env node
// ems-llama-ttft: the time to the first token of one prompt with EMS and without, of servers that are started for it (server.mjs).
// A first engine computes and saves the prompt and ends. A second one, started then, restores it and answers another question; then
// it computes the same from the start. Prints a table; its exit code says whether EMS was hit and the tokens are the same.
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import fs from 'node:fs';
import readline from 'node:readline';
import {fileURLToPath} from 'node:url';
import {parseArgs} from 'node:util';

const SERVER = fileURLToPath(new URL('server.mjs', import.meta.url));
const HELP = 'ems-llama-ttft --model FILE [--prompt FILE] [--ctx-size 4096] [--threads N] [--ems JSON]: as ems-llama-server takes them\n';
const PROMPT = 'You are a patient teacher of geography, who answers in one sentence. '.repeat(24);
const QUESTIONS = ['Which mountains are there between France and Spain, and how high is the highest of them?',
  'Which rivers does the water of the Lake of Constance come from, and where does it go to?'];
const TOKENS = 16;

async function started(args) {
  const server = spawn(process.execPath, [SERVER, '--port', '0', ...args], {stdio: ['ignore', 'pipe', 'inherit']});
  const exited = once(server, 'exit');
  const [line] = await Promise.race([once(readline.createInterface({input: server.stdout}), 'line'), exited]);
  if (typeof line !== 'string') throw new Error(`the server ended with code ${line ?? server.signalCode}`);
  return {server, exited, url: line.replace('listening on ', '')};
}

/** What `ask` says of a server that runs for it and ends then, after what it saves. */
async function during(args, ask) {
  const engine = await started(args);
  try {
    await warm(engine);
    return await ask(engine);
  } finally {
    engine.server.kill('SIGTERM');
    await engine.exited;
  }
}

async function completed({url}, prompt, more = {}) {
  const response = await fetch(`${url}/completion`, {
    method: 'POST', body: JSON.stringify({prompt, n_predict: TOKENS, temperature: 0, ...more}),
  });
  const said = await response.json();
  if (!response.ok) throw new Error(said.error.message);
  return said;
}

/** The first prompt of a process is slower than others. */
const warm = (engine) => completed(engine, 'Good morning. '.repeat(40), {cache_prompt: false, n_predict: 1});

async function measured(args, prompt) {
  const [first, second] = QUESTIONS.map((question) => prompt + question);
  const saved = await during(args, (saver) => completed(saver, first));
  return during(args, async (loader) => {
    const restored = await completed(loader, second);
    return {saved, restored, cold: await completed(loader, second, {cache_prompt: false})};
  });
}

const {values} = parseArgs({options: {
  'model': {type: 'string', short: 'm'}, 'prompt': {type: 'string', short: 'p'}, 'ctx-size': {type: 'string', short: 'c'},
  'threads': {type: 'string', short: 't'}, 'ems': {type: 'string'},
}});
if (values.model === undefined) {
  process.stderr.write(HELP);
  process.exit(2);
}
const {prompt: file, ...rest} = values;
const {saved, restored, cold} = await measured(
  Object.entries(rest).flatMap(([name, value]) => [`--${name}`, value]), file === undefined ? PROMPT : fs.readFileSync(file, 'utf8'));
const row = (what, {timings, tokens_evaluated: tokens}) => console.log([
  what.padEnd(28), String(tokens).padStart(13), String(timings.ems_n).padStart(8), `${timings.prompt_ms.toFixed(1)} ms`.padStart(18),
  (timings.prompt_ms / cold.timings.prompt_ms).toFixed(2).padStart(5)].join('  '));
console.log(`${''.padEnd(28)}  prompt tokens  from EMS  time to 1st token  ratio`);
row('without EMS', cold);
row('with EMS, a new prompt', saved);
row('with EMS, engine restarted', restored);
const isSame = JSON.stringify(restored.tokens) === JSON.stringify(cold.tokens);
console.log(`the same ${cold.tokens.length} tokens with EMS and without: ${isSame ? 'yes' : 'NO'}`);
process.exit(isSame && restored.timings.ems_n > 0 ? 0 : 1);
