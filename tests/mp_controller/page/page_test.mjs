// What must hold: the page shows what a state says, hostile names as the text that they are, rates of
// processes that go on alone, and that its numbers are old when they are; its policy is that of its script.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../../', import.meta.url));
const file = join(root, 'mp_controller/page/page.html');
const html = readFileSync(file, 'utf8');
const inner = element => new RegExp(`<${element}>(.*?)</${element}>`, 's').exec(html)[1];

// What the script needs of a document. Markup is not among it: using it fails.
class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, style: {}, text: '' }); }
  append(...children) { for (const child of children) assert.ok(child !== undefined, this.tag); this.children.push(...children); }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  cloneNode() { return Object.assign(new Element(this.tag), { attributes: this.attributes }); }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map(child => typeof child === 'string' ? child : child.textContent).join(''); }
  set innerHTML(_) { throw new Error('markup'); }
  insertAdjacentHTML() { throw new Error('markup'); }
  all(tag) { return this.children.flatMap(child => child instanceof Element ? [...(child.tag === tag ? [child] : []), ...child.all(tag)] : []); }
}

function load() {
  const ids = new Map([...html.matchAll(/ id="([\w-]+)"/g)].map(([, id]) => [id, new Element('#' + id)]));
  const document = {
    createElement: tag => new Element(tag),
    createElementNS: (_, tag) => new Element(tag),
    getElementById: id => { assert.ok(ids.has(id), id); return ids.get(id); },
  };
  const names = ['curveOf', 'perSecond', 'bytes', 'count', 'percent', 'age', 'noteOf', 'difference', 'History', 'linePath', 'linkText', 'show'];
  const page = new Function('document', 'EventSource', `${inner('script')}\nreturn { ${names.join(', ')} };`)(document);
  return { ...page, ids };
}

const node = (id, more = {}) => ({
  id, name: 'server-' + id, state: 'up', data_address: 'h:' + id, slots: 8192, dram_used_bytes: 512, dram_total_bytes: 1024, objects: 3,
  ssd_used_bytes: 0, ssd_total_bytes: 0, ssd_state: 'none', gets: 0, hits: 0, heartbeat_age_ms: 10, joined_unix_ms: 1, left_unix_ms: 0,
  behind_ms: 0, ahead: false, waited_for: false, waiting_ms: 0, term: 1, epoch: 2, boot_id: 'b' + id, ...more });
const sumOf = (nodes, key) => nodes.reduce((sum, one) => sum + one[key], 0);
const stateOf = (nodes, more = {}) => ({
  health: 'OK', processes: nodes.map(one => one.boot_id).join(), gets: sumOf(nodes, 'gets'), hits: sumOf(nodes, 'hits'),
  cluster: '0000000000000abc', now_unix_ms: 1000, heartbeat_ms: 1000, lease_ms: 5000, view: { term: 1, epoch: 2, frozen: false }, store_is_old: false,
  slots: 16384, servers: { up: nodes.length, down: 0, left: 0 }, dram_used_bytes: 512, dram_total_bytes: 1024, ssd_used_bytes: 0, ssd_total_bytes: 0,
  objects: 3, nodes, nodes_left_out: 0, namespaces: [], namespaces_left_out: 0, models: [], models_left_out: 0, events: [], ...more });
const model = more => ({ model: 'm', version: 'v1', namespace: 'models', bytes: 1000, blocks: 2, blocks_known: 1, pinned: true,
  job: { number: 1, state: 'running', bytes_done: 400, source_bytes: 400, elapsed_ms: 200, time_left_ms: 9000, error: '' }, ...more });

test('events are shown, the newest first, as the text that they are', () => {
  const { show, History, ids } = load();
  const event = (sequence, text) => ({ sequence, time: '2026-11-27T12:00:0' + sequence + '.000Z', kind: 'node_lost', node: 'a', namespace: '', text });
  show(stateOf([node(1)], { events: [event(1, 'first'), event(2, '<b>second')] }), new History());
  assert.match(ids.get('events').textContent, /12:00:02.000Znode_lost<b>second.*12:00:01.000Znode_lostfirst/);
});

test('a state is shown, part by part', () => {
  const { show, History, ids } = load();
  const text = id => ids.get(id).textContent;
  const namespaces = [{ name: 'kv', dram_reserved_bytes: 0, dram_quota_bytes: 2048, ssd_reserved_bytes: 0, ssd_quota_bytes: 0, durability: 'ssd-relaxed', checksum: 'sampled', immutable: true }];
  show(stateOf([node(1), node(2, { state: 'DOWN', slots: 0 })], { health: 'DEGRADED', gets: 15000, hits: 7500, namespaces, models: [model()] }), new History());
  assert.equal(text('cluster'), '0000000000000abc');
  assert.equal(text('health'), 'DEGRADED');
  assert.match(text('tiles'), /512 B of 1\.0 KiB/);
  assert.match(text('tiles'), /50\.0 % of 15,000 since the servers started/);
  assert.match(text('servers'), /server-1up.*server-2DOWN/);
  assert.match(text('owners-text'), /8,192 of 16,384 slots; 8,192 have none: their keys miss/);
  assert.match(text('namespaces'), /kv.*2\.0 KiB.*ssd-relaxedsampledyes/);
  assert.match(text('models'), /running, 40\.0 %, 9 s left at most.*2\.0 KiB\/s/);
});

test('a namespace shows what more memory would bring', () => {
  const { curveOf, show, History, ids } = load();
  const curve = { lookups: 1000, hits: 330, memory_bytes: 1024, age_s: 1, memories: [0.25, 0.5, 1, 2, 4, 8], estimates: [0, 0.2, 0.33, 0.41, 0.5, 1] };
  const [text, line] = curveOf(curve);
  assert.equal(text, 'today 33 %, with 2× the memory 41 %');
  assert.equal(line.attributes['aria-label'], '0.25×: 0 %, 0.5×: 20 %, 1×: 33 %, 2×: 41 %, 4×: 50 %, 8×: 100 %');
  assert.equal(line.all('path')[0].attributes.d, 'M0.0 98.0L20.0 78.8L40.0 66.3L60.0 58.6L80.0 50.0L100.0 2.0');
  assert.equal(line.all('line')[1].attributes.x1, '40');
  assert.deepEqual(curveOf({ ...curve, estimates: null }), ['today 33 %, not enough samples']);
  for (const none of [null, undefined, { ...curve, lookups: 0 }]) assert.deepEqual(curveOf(none), ['–']);
  const one = { name: 'kv', dram_reserved_bytes: 0, dram_quota_bytes: 0, ssd_reserved_bytes: 0, ssd_quota_bytes: 0, durability: 'dram', checksum: 'always', immutable: false, curve };
  show(stateOf([node(1)], { namespaces: [one, { ...one, curve: null }] }), new History());
  assert.match(ids.get('namespaces').textContent, /kvtoday 33 %, with 2× the memory 41 %.*kv–/);
});

test('an empty cluster says so', () => {
  const { show, History, ids } = load();
  show(stateOf([], { health: 'NO SERVERS', view: null, cluster: null }), new History());
  assert.equal(ids.get('health').textContent, 'NO SERVERS');
  assert.match(ids.get('servers').textContent, /No server has registered yet/);
});

test('names from outside are text, wherever they stand', () => {
  const { show, History, ids } = load();
  const hostile = '<img src=x onerror=alert(1)></script><b>"\'';
  const namespaces = [{ name: hostile, dram_reserved_bytes: 0, dram_quota_bytes: 0, ssd_reserved_bytes: 0, ssd_quota_bytes: 0, durability: hostile, checksum: hostile, immutable: false }];
  const job = { ...model().job, state: 'failed', error: hostile };
  show(stateOf([node(1, { name: hostile, data_address: hostile, state: hostile })],
    { cluster: hostile, namespaces, models: [model({ model: hostile, version: hostile, namespace: hostile, job })] }), new History());
  for (const id of ['cluster', 'servers', 'owners', 'namespaces', 'models']) assert.ok(ids.get(id).textContent.includes(hostile), id);
  for (const element of ids.values()) for (const tag of ['img', 'b', 'script']) assert.deepEqual(element.all(tag), []);
  assert.doesNotMatch(inner('script'), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|DOMParser/);
});

test('rates are of processes that go on', () => {
  const { difference, History } = load();
  const before = stateOf([node(1, { gets: 100, hits: 50 }), node(2, { gets: 70, hits: 70 })]);
  const after = stateOf([node(1, { gets: 300, hits: 200 }), node(2, { gets: 90, hits: 90, boot_id: 'new' }), node(3, { gets: 9, hits: 9 })], { now_unix_ms: 3000 });
  assert.deepEqual(difference(before, after), { ms: 2000, gets: 200, hits: 150 });
  const history = new History();
  history.add(before);
  assert.equal(history.now(), undefined);
  history.add(after);
  assert.equal(history.rate(1), 100);
  assert.equal(history.now().hits, 150);
  history.add(stateOf([node(1)], { now_unix_ms: 10 }));  // a clock that was set back
  assert.equal(history.rate(1), undefined);
});

test('a history is bounded', () => {
  const { History } = load();
  const history = new History();
  for (let i = 0; i < 1000; ++i) history.add(stateOf([node(1, { gets: i })], { now_unix_ms: 1000 * (i + 1) }));
  assert.equal(history.samples.length, 300);
  assert.ok(history.recent.length <= 11);
  assert.equal(history.now().gets, 10);
  history.add(stateOf([node(1, { gets: 1000 })], { now_unix_ms: 2000_000 }));
  assert.equal(history.samples.length, 1, 'of five minutes, also after a pause');
  history.add(stateOf([node(1)], { now_unix_ms: 10 }));
  assert.equal(history.samples.length, 0, 'of another clock');
});

test('a line has gaps where nothing is known', () => {
  const { linePath } = load();
  const path = (top, ...points) => linePath(points.map(([at, value]) => ({ at, value })), one => one.value, top);
  assert.equal(path(1, [1000, 0], [2000, undefined], [3000, 1]), 'M298.0 98.0M300.0 2.0');
  assert.equal(path(0, [1000, 5], [2000, 5]), 'M299.0 98.0L300.0 98.0');
  assert.equal(path(1, [1000, 0], [61_000, 1]), 'M240.0 98.0M300.0 2.0', 'paused meanwhile');
});

test('of more servers than rows, all count', () => {
  const { difference, History } = load();
  const at = (now_unix_ms, gets, processes = 'p') => stateOf([node(1, { gets: 5 })], { now_unix_ms, gets, hits: gets / 2, processes, nodes_left_out: 700 });
  assert.deepEqual(difference(at(1000, 4000), at(3000, 8000)), { ms: 2000, gets: 4000, hits: 2000 });
  const history = new History();
  history.add(at(1000, 4000));
  history.add(at(2000, 8000));
  assert.equal(history.now().gets, 4000);
  history.add(at(3000, 100, 'one of those that have no row began again'));
  assert.equal(history.samples.length, 1, 'nothing is known of this second');
  assert.equal(history.now(), undefined);
  history.add(at(4000, 300, 'one of those that have no row began again'));
  assert.equal(history.now().gets, 200);
});

test('health is what the controller says, notes are those of emsctl', () => {
  const { show, noteOf, History, ids } = load();
  for (const [health, kind] of [['OK', 'good'], ['DEGRADED', 'warn'], ['FROZEN', 'bad'], ['NO SERVERS', 'bad']]) {
    show(stateOf([node(1)], { health }), new History());
    assert.equal(ids.get('health').textContent, health);
    assert.equal(ids.get('health').className, kind);
  }
  assert.equal(noteOf(node(1, { ahead: true, behind_ms: 3000 }), stateOf([])), 'ahead, behind 3 s');
  assert.equal(noteOf(node(1, { drain: 'none' }), stateOf([])), '');
  assert.equal(noteOf(node(1, { drain: 'draining', pulled_by: 2 }), stateOf([])), 'DRAINING, 2 fetch from it');
  assert.equal(noteOf(node(1, { drain: 'draining', stopping: true, pulled_by: 0 }), stateOf([])), 'stopping, DRAINING');
  assert.equal(noteOf(node(1, { drain: 'drained', pulled_by: 0 }), stateOf([])), 'DRAINED');
});

test('numbers that are old are said to be', () => {
  const { linkText } = load();
  assert.deepEqual(linkText({ heard: 900, paused: false, trouble: '' }), { old: false, text: '' });
  assert.deepEqual(linkText({ heard: 12_000, paused: false, trouble: '' }), { old: true, text: 'Nothing heard for 12 s: these numbers are old.' });
  assert.match(linkText({ heard: 4000, paused: true, trouble: '' }).text, /4 s old/);
  assert.match(linkText({ heard: 4000, paused: false, trouble: 'disk' }).text, /No numbers for 4 s: disk/);
});

test('units', () => {
  const { bytes, age, percent, perSecond } = load();
  assert.deepEqual([0, 1023, 1536, 200 * 2 ** 30].map(bytes), ['0 B', '1023 B', '1.5 KiB', '200 GiB']);
  assert.deepEqual([900, 300e3, 9e6, 2e9].map(age), ['1 s', '5 min', '3 h', '23 days']);
  assert.deepEqual([percent(1, 3), percent(0, 0)], ['33.3 %', '–']);
  assert.deepEqual([0, 0.3, 9.96, 10, 1234.5].map(perSecond), ['0', '0.3', '10.0', '10', '1,235']);
});

test('the policy lets this script and this style run, and nothing of elsewhere', () => {
  const folder = mkdtempSync(join(tmpdir(), 'page-'));
  try {
    execFileSync('/usr/bin/python3', ['-B', join(root, 'cmake/embed_page.py'), file, 'mp_controller/page/page_html.h', 'ems::controller', join(folder, 'page.cc')]);
    const source = readFileSync(join(folder, 'page.cc'), 'utf8');
    for (const element of ['script', 'style'])
      assert.ok(source.includes(`${element}-src 'sha256-${createHash('sha256').update(inner(element)).digest('base64')}'`), element);
    assert.ok(source.includes(html));
    assert.match(source, /default-src 'none'/);
  } finally {
    rmSync(folder, { recursive: true });
  }
  assert.doesNotMatch(html, /https?:\/\/(?!www\.w3\.org\/2000\/svg)|\sstyle="|\son\w+="|javascript:/);
});
