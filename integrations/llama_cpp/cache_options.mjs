// Options of PromptCache.open: their defaults, and what each may be. They go on to C, where a value of another type would end
// the process.
import {Durability} from './ems_library.mjs';
import {defaultDigestCache} from './file_digest.mjs';

const INTEGER_MAX = 2 ** 31 - 1;

export const DEFAULTS = {
  library: 'libems.so.0',
  controller: '127.0.0.1:7400',
  namespace: 'default',
  shmToken: null,
  lora: [], // [{path, scale}] of the context, in its order
  cacheSalt: '', // those with different salts share nothing
  stepTokens: 64, // prefixes are looked up at multiples of this
  restTokensMin: 64, // tokens of a prompt that are computed in any case; see docs/engines/LLAMA_CPP.md on equal bits
  saveEveryTokens: 512, // a multiple of stepTokens: saved on the way, besides the last step of a prompt; 0: that alone
  durability: 'default', // or 'dram', 'ssd'
  partBytes: 4 << 20, // largest value; halved by itself where the pool takes no such values
  savesMax: 4,
  lookupTimeoutMs: 100,
  loadTimeoutMs: 5000,
  saveTimeoutMs: 30_000,
  startTimeoutMs: 1000,
  reconnectMs: 5000, // without a pool, between two attempts
  digestCache: defaultDigestCache(), // file that remembers hashes of model files; null: none
  koffi: null, // the module, for applications whose node_modules this package does not see
};

const isText = (value) => typeof value === 'string' && !value.includes('\0'); // C would end there
const isName = (value) => isText(value) && value !== '';
const text = {is: isText, what: 'a string'};
const name = {is: isName, what: 'a string that says something'};
const orNull = ({is, what}) => ({is: (value) => value === null || is(value), what: `${what}, or null`});
const integer = (least, most = INTEGER_MAX) => ({
  is: (value) => Number.isInteger(value) && value >= least && value <= most, what: `an integer from ${least} to ${most}`,
});

/** What each option may be, by itself. Limits of times are those of ems.h. */
const KINDS = {
  library: name,
  controller: name,
  namespace: name,
  shmToken: orNull(text),
  lora: {is: (value) => Array.isArray(value) && value.every(isAdapter), what: 'a list of {path, scale}'},
  cacheSalt: text,
  stepTokens: integer(1),
  restTokensMin: integer(1), // a token to generate from is needed
  saveEveryTokens: integer(0),
  durability: {is: (value) => isText(value) && Object.hasOwn(Durability, value),
    what: `one of ${Object.keys(Durability).join(', ')}`},
  partBytes: {is: (value) => integer(1 << 16, 1 << 30).is(value) && Number.isInteger(Math.log2(value)),
    what: 'a power of two from 64 KiB to 1 GiB'},
  savesMax: integer(0),
  lookupTimeoutMs: integer(1, 30_000),
  loadTimeoutMs: integer(1),
  saveTimeoutMs: integer(1),
  startTimeoutMs: integer(1, 60_000),
  reconnectMs: integer(0),
  digestCache: orNull(name),
  koffi: orNull({is: (value) => typeof value?.load === 'function', what: 'the module'}),
};

/** `given` with defaults for what is absent or undefined. Throws TypeError for what nobody knows or what makes no sense. */
export function checkedOptions(given) {
  const unknown = Object.keys(given).filter((option) => !Object.hasOwn(DEFAULTS, option));
  if (unknown.length > 0) throw new TypeError(`there is no option ${unknown.join(', ')}`);
  const said = Object.entries(given).filter(([, value]) => value !== undefined);
  const options = {...DEFAULTS, ...Object.fromEntries(said)};
  for (const [option, {is, what}] of Object.entries(KINDS)) {
    if (!is(options[option])) throw new TypeError(`${option}: ${shown(options[option])} is not ${what}`);
  }
  const {stepTokens, saveEveryTokens} = options;
  if (saveEveryTokens % stepTokens !== 0) {
    throw new TypeError(`saveEveryTokens: ${saveEveryTokens} is no multiple of stepTokens (${stepTokens})`);
  }
  return options;
}

function isAdapter(value) {
  return isName(value?.path) && (value.scale === undefined || Number.isFinite(value.scale));
}

function shown(value) {
  if (typeof value === 'string') return `'${value}'`;
  return value !== null && typeof value === 'object' ? 'an object' : String(value);
}
