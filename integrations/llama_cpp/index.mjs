// A prompt cache for node-llama-cpp: see docs/engines/LLAMA_CPP.md.
export {PromptCache} from './prompt_cache.mjs';
