#!/usr/bin/env node
// ems-llama-server: a model of node-llama-cpp behind HTTP, in the shape of llama.cpp's server (completion_server.mjs), its prompts
// cached in EMS. Says where it listens; SIGTERM and SIGINT end it when what runs and what is being saved is done; what waits
// is refused.
import {once} from 'node:events';
import path from 'node:path';
import {parseArgs} from 'node:util';

import {CompletionEngine} from './completion_engine.mjs';
import {completionServer} from './completion_server.mjs';

const HELP = `ems-llama-server --model FILE [option …]
  --host ADDRESS      127.0.0.1
  --port PORT         8080; 0: any that is free
  --ctx-size TOKENS   4096
  --threads N         as llama.cpp chooses
  --no-ems            without EMS
  --ems JSON          options of PromptCache.open, as {"controller": "10.0.0.1:7400", "durability": "ssd"}
`;

function settings() {
  const {values} = parseArgs({options: {
    'model': {type: 'string', short: 'm'}, 'host': {type: 'string', default: '127.0.0.1'}, 'port': {type: 'string', default: '8080'},
    'ctx-size': {type: 'string', short: 'c', default: '4096'}, 'threads': {type: 'string', short: 't'},
    'no-ems': {type: 'boolean', default: false}, 'ems': {type: 'string', default: '{}'}, 'help': {type: 'boolean', short: 'h'},
  }});
  const number = (name, least) => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < least) throw new TypeError(`--${name}: ${values[name]} is no number of ${least} or more`);
    return value;
  };
  if (values.help || values.model === undefined) return null;
  return {
    modelPath: path.resolve(values.model), host: values.host, port: number('port', 0), contextSize: number('ctx-size', 1),
    threads: values.threads === undefined ? undefined : number('threads', 1), cache: values['no-ems'] ? null : JSON.parse(values.ems),
  };
}

async function main() {
  const said = settings();
  if (said === null) {
    process.stderr.write(HELP);
    process.exit(2);
  }
  const {host, port, ...of} = said;
  const engine = await CompletionEngine.open(of);
  const server = completionServer(engine, path.basename(of.modelPath));
  server.listen(port, host);
  await once(server, 'listening');
  process.stdout.write(`listening on http://${host.includes(':') ? `[${host}]` : host}:${server.address().port}\n`);
  await Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')]);
  server.close();
  await engine.close();
  server.closeAllConnections();
}

await main().catch((error) => {
  process.stderr.write(`ems-llama-server: ${error.message}\n`);
  process.exit(1);
});
