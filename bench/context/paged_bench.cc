#include "bench/context/paged_bench.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/report.h"
#include "bench/harness/trace_payload.h"
#include "common/check.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr uint32_t kElementBytes = 2;  // BF16
constexpr Duration kCallTimeout = std::chrono::seconds(20);
constexpr Duration kSubmitTimeout = std::chrono::milliseconds(200);

// Uses the CPU for so long, as a layer's computation would.
void Compute(Duration time) {
  const TimePoint end = Clock::System().Now() + time;
  while (Clock::System().Now() < end) {
  }
}

// Stops processes and lets them go on again, whatever happens in between.
class Pause final {
 public:
  explicit Pause(const std::vector<pid_t>& pids) : pids_(pids) {
    for (const pid_t pid : pids_) ::kill(pid, SIGSTOP);
  }
  ~Pause() {
    for (const pid_t pid : pids_) ::kill(pid, SIGCONT);
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  const std::vector<pid_t>& pids_;
};

Status FirstError(const context::LoadResult& loaded) {
  for (const auto& block : loaded.blocks) {
    if (!block.ok()) return Prefixed(block.status(), "a block that was saved");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<PagedBench>> PagedBench::Make(const PagedSettings& settings,
                                                     context::BlockStore* store) {
  std::unique_ptr<PagedBench> bench(new PagedBench(settings, store));
  EMS_RETURN_IF_ERROR(bench->MakeTensors());
  return bench;
}

Status PagedBench::MakeTensors() {
  const uint64_t page_tokens = settings_.block_tokens;
  const uint64_t token_bytes = uint64_t{settings_.latent + settings_.rope} * kElementBytes;
  const uint64_t bytes = settings_.layers * settings_.blocks * page_tokens * token_bytes;
  EMS_ASSIGN_OR_RETURN(tensors_, PageBuffer::Make(bytes));
  EMS_ASSIGN_OR_RETURN(source_, PageBuffer::Make(bytes));
  std::vector<context::KvLayer> layers;
  std::byte* at = tensors_.bytes().data();
  for (uint32_t i = 0; i < settings_.layers; ++i) {
    context::KvLayer& layer = layers.emplace_back();
    for (const uint32_t size : {settings_.latent, settings_.rope}) {
      const uint64_t tensor_bytes = settings_.blocks * page_tokens * size * kElementBytes;
      context::KvTensor& tensor = layer.tensors.emplace_back();
      tensor.data = at;
      tensor.bytes = tensor_bytes;
      tensor.blocks = settings_.blocks;
      tensor.block_tokens = settings_.block_tokens;
      tensor.head_size = size;
      at += tensor_bytes;
    }
  }
  EMS_ASSIGN_OR_RETURN(context::KvLayout layout, context::KvLayout::Make(std::move(layers)));
  cache_ = std::make_unique<context::ContextCache>(
      store_, context::ContextCacheOptions{.block_tokens = settings_.block_tokens});
  paged_ = std::make_unique<context::PagedCache>(cache_.get(), store_, std::move(layout));
  salt_ = fmt::format("{:x}", std::random_device{}());
  return OkStatus();
}

// Block i lies in a page of the engine's choice.
std::vector<context::PagedBlock> PagedBench::Blocks() const {
  std::vector<uint64_t> pages(settings_.blocks);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(1));
  std::vector<context::PagedBlock> blocks;
  for (uint64_t i = 0; i < settings_.blocks; ++i) {
    blocks.push_back({.key = fmt::format("{}-load-{}", salt_, i),
                      .runs = {{{pages[i] * settings_.block_tokens, settings_.block_tokens}}}});
  }
  return blocks;
}

// With the pages that were saved, the tensors are what they were.
Status PagedBench::CheckAll(PagedResult* result) {
  const uint64_t wrong = CountWrongBytes(1, tensors_.bytes());
  result->load_checked += tensors_.bytes().size();
  if (wrong == 0) return OkStatus();
  return Error(StatusCode::kDataLoss, "{} bytes of {} are wrong", wrong, tensors_.bytes().size());
}

Result<PagedResult> PagedBench::Run() {
  PagedResult result;
  result.blocks = settings_.blocks;
  result.block_bytes = paged_->layout().BlockBytes(0, settings_.block_tokens);
  EMS_RETURN_IF_ERROR(RunLoads(&result));
  EMS_RETURN_IF_ERROR(RunLayers(&result));
  EMS_RETURN_IF_ERROR(RunLookups(&result));
  EMS_RETURN_IF_ERROR(RunSubmits(settings_.submits, true, &result.submit));
  if (settings_.pause.empty()) return result;
  const Pause pause(settings_.pause);
  EMS_RETURN_IF_ERROR(RunSubmits(settings_.submits / 10, false, &result.submit_paused));
  return result;
}

Status PagedBench::RunLoads(PagedResult* result) {
  const auto blocks = Blocks();
  const context::CallOptions options{.timeout = kCallTimeout};
  const Clock& clock = Clock::System();
  const uint64_t bytes = tensors_.bytes().size();
  FillBlock(1, tensors_.bytes());
  std::vector<double> copies, loads, ratios, cpu;
  TimePoint start = clock.Now();
  const context::SaveResult saved = paged_->Save(blocks, context::SavePhase::kPrefill, options);
  result->save_gbps = GbPerSecond(bytes, clock.Now() - start);
  for (const Status& status : saved.blocks) EMS_RETURN_IF_ERROR(status);
  for (uint64_t round = 0; round < settings_.rounds; ++round) {
    if (Interrupted()) return Interruption();
    std::memset(tensors_.bytes().data(), 0x5a, bytes);
    start = clock.Now();
    for (uint64_t at = 0; at < bytes; at += result->block_bytes)
      std::memcpy(tensors_.bytes().data() + at, source_.bytes().data() + at, result->block_bytes);
    const double copied = GbPerSecond(bytes, clock.Now() - start);
    std::memset(tensors_.bytes().data(), 0x5a, bytes);
    EMS_ASSIGN_OR_RETURN(CpuMeter meter, CpuMeter::Make({}));
    meter.Start();
    start = clock.Now();
    const context::LoadResult loaded = paged_->Load(blocks, options);
    const double got = GbPerSecond(bytes, clock.Now() - start);
    meter.Stop();
    EMS_RETURN_IF_ERROR(FirstError(loaded));
    EMS_RETURN_IF_ERROR(CheckAll(result));
    copies.push_back(copied);
    loads.push_back(got);
    ratios.push_back(got / copied);
    cpu.push_back(meter.SecondsPerGb(bytes));
  }
  result->memcpy_gbps = Median(copies);
  result->load_gbps = Median(loads);
  result->load_vs_memcpy = Median(ratios);
  result->load_cpu_s_per_gb = Median(cpu);
  return OkStatus();
}

// The consumer computes on a layer for as long as loading one takes.
Status PagedBench::RunLayers(PagedResult* result) {
  const auto blocks = Blocks();
  const context::CallOptions options{.timeout = kCallTimeout};
  const Clock& clock = Clock::System();
  const auto run = [&](Duration compute, double* seconds) -> Status {
    std::memset(tensors_.bytes().data(), 0x5a, tensors_.bytes().size());
    const TimePoint start = clock.Now();
    const context::LayerLoad load = paged_->LoadLayers(blocks, options);
    for (size_t layer = 0; layer < load.layers(); ++layer) {
      const auto ready = load.WaitLayer(layer, Deadline::After(kCallTimeout));
      EMS_RETURN_IF_ERROR(ready.status());
      if (!ready->missing.empty()) {
        EMS_RETURN_IF_ERROR(FirstError(load.Result()));
        return Error(StatusCode::kNotFound, "{} blocks are missing", ready->missing.size());
      }
      Compute(compute);
    }
    *seconds = Seconds(clock.Now() - start);
    EMS_RETURN_IF_ERROR(FirstError(load.Result()));
    return CheckAll(result);
  };
  std::vector<double> alone, both, ratios;
  for (uint64_t round = 0; round < settings_.rounds; ++round) {
    if (Interrupted()) return Interruption();
    double load_s = 0, both_s = 0;
    EMS_RETURN_IF_ERROR(run(Duration::zero(), &load_s));
    const auto each = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(load_s / settings_.layers));
    EMS_RETURN_IF_ERROR(run(each, &both_s));
    const double compute_s = Seconds(each) * settings_.layers;
    alone.push_back(load_s * 1e3);
    both.push_back(both_s * 1e3);
    ratios.push_back(both_s / std::max(load_s, compute_s));
  }
  result->layers_load_ms = Median(alone);
  result->layers_both_ms = Median(both);
  result->layers_ratio = Median(ratios);
  return OkStatus();
}

Status PagedBench::RunLookups(PagedResult* result) {
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < settings_.lookup_blocks; ++i)
    keys.push_back(fmt::format("{}-lookup-{:032}", salt_, i));
  const std::string value(4 * kKiB, 'v');
  const std::vector<ConstBuffers> values(keys.size(), std::string_view(value));
  for (const Status& status : cache_->Save(keys, values).blocks) EMS_RETURN_IF_ERROR(status);
  result->lookup_blocks = keys.size();
  for (int i = 0; i < 200; ++i) {
    if (Interrupted()) return Interruption();
    const TimePoint start = Clock::System().Now();
    const context::LookupResult found = cache_->Lookup(keys);
    result->lookup.Record(Clock::System().Now() - start);
    if (found.leading_blocks != keys.size())
      return Error(StatusCode::kNotFound, "{} of {} blocks are stored", found.leading_blocks,
                   keys.size());
  }
  return OkStatus();
}

// One block each, a few at a time: an engine's step must not wait for the cache.
Status PagedBench::RunSubmits(uint64_t submits, bool answered, LatencyRecorder* into) {
  constexpr uint64_t kAtOnce = 16;
  const auto blocks = Blocks();
  const context::CallOptions options{.timeout = answered ? kCallTimeout : kSubmitTimeout};
  for (uint64_t i = 0; i < submits; i += kAtOnce) {
    if (Interrupted()) return Interruption();
    std::vector<context::LoadCall> calls;
    for (uint64_t j = 0; j < kAtOnce; ++j) {
      std::vector<context::PagedBlock> one = {blocks[(i + j) % blocks.size()]};
      const TimePoint start = Clock::System().Now();
      calls.push_back(paged_->LoadAsync(std::move(one), options));
      into->Record(Clock::System().Now() - start);
    }
    for (const context::LoadCall& call : calls) {
      if (answered) {
        EMS_RETURN_IF_ERROR(FirstError(call.Result()));
      } else {
        call.Wait(Deadline::After(kCallTimeout));
      }
    }
  }
  return OkStatus();
}

}  // namespace ems::bench
