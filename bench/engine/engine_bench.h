#pragma once
// The engine of the serving loop, in this process: prefill, prefill after a cached prefix, decode.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "pdc/engine/engine.h"

namespace ems::bench {

struct EngineBenchSettings {
  pdc::ModelConfig config;
  pdc::KvOptions kv{};
  pdc::EngineOptions engine{};
  uint32_t prompt_tokens = 2048;                   // of reuse, and before decode
  std::vector<uint32_t> prompts{256, 1024, 4096};  // of prefill, from nothing
  std::vector<uint32_t> reuse_percent{0, 50, 90};  // of a prompt, already in its blocks
  std::vector<uint32_t> batches{1, 8, 32};         // of decode
  uint32_t decode_steps = 16;
  uint32_t rounds = 3;  // the best one counts
};

struct PrefillResult {
  uint32_t prompt = 0, cached = 0;  // tokens
  double seconds = 0;
  double tokens_per_s = 0;  // of those computed
  double gflops = 0;
};
struct DecodeResult {
  uint32_t batch = 0, context = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
};

// Threading: one thread.
class EngineBench final {
 public:
  // Errors: those of Engine::Create, KvArena::Create and MakeWeights
  static Result<std::unique_ptr<EngineBench>> Create(const EngineBenchSettings& settings);

  // `wanted`, called between calls of the engine: false ends the run with kCancelled.
  Result<std::vector<PrefillResult>> Prefills(const std::function<bool()>& wanted);
  // One prompt, of which a part is there already; the results for 0 and others compare.
  Result<std::vector<PrefillResult>> Reuse(const std::function<bool()>& wanted);
  Result<std::vector<DecodeResult>> Decodes(const std::function<bool()>& wanted);

 private:
  EngineBench(const EngineBenchSettings& settings, std::shared_ptr<const pdc::Model> model);
  Result<PrefillResult> Prefill(uint32_t prompt, uint32_t cached,
                                const std::function<bool()>& wanted);
  Result<DecodeResult> Decode(uint32_t batch, const std::function<bool()>& wanted);

  const EngineBenchSettings settings_;
  const std::shared_ptr<const pdc::Model> model_;
  std::vector<std::byte> memory_;
  std::unique_ptr<pdc::KvArena> arena_;
  std::unique_ptr<pdc::Engine> engine_;
};

}  // namespace ems::bench
