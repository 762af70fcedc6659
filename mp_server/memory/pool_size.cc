#include "mp_server/memory/pool_size.h"

#include <utility>

#include "common/check.h"
#include "common/logging.h"

namespace ems::server {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(50);

}  // namespace

PoolSize::PoolSize(Options options)
    : options_(std::move(options)), host_(options_.roots), size_(options_.elastic) {
  EMS_CHECK(options_.pool != nullptr && options_.bytes > 0);
  {
    auto state = state_.Lock();
    state->most = options_.bytes;
  }
  if (options_.is_elastic) thread_ = Thread("ems-elastic", [this] { Run(); });
}

PoolSize::~PoolSize() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

uint64_t PoolSize::FirstBytes(const Options& options) {
  if (!options.is_elastic) return options.bytes;
  const Result<MemoryReading> reading = HostMemory(options.roots).Read();
  if (!reading.ok()) return options.elastic.bytes_min;
  return ElasticSize(options.elastic).First(*reading, options.bytes);
}

void PoolSize::SetMost(uint64_t bytes) {
  // Whole huge pages, as the pool has them: with a remainder an elastic pool would never be as
  // large as it may be, and shrink and grow in turns.
  const uint64_t most =
      bytes == 0 ? options_.bytes : bytes / fabric::kHugePageBytes * fabric::kHugePageBytes;
  {
    auto state = state_.Lock();
    if (std::exchange(state->most, most) == most) return;
  }
  if (!options_.is_elastic) return Resize(most, "as an operator says");
  wakeup_.notify_all();
}

void PoolSize::Resize(uint64_t bytes, const char* why) {
  const uint64_t before = options_.pool->bytes_max();
  options_.pool->Resize(bytes);
  const uint64_t after = options_.pool->bytes_max();
  if (after == before) return;
  options_.on_change();
  EMS_LOG(kInfo, "mp_server", "the pool has another size bytes={} before={} reason=\"{}\"",
          FormatBytes(after), FormatBytes(before), why);
}

void PoolSize::Run() {
  while (true) {
    uint64_t most = 0;
    {
      auto state = state_.Lock();
      most = state->most;
      state.WaitFor(wakeup_, kLookEvery,
                    [most](const State& s) { return s.stopping || s.most != most; });
      if (state->stopping) return;
      most = state->most;
    }
    Look(most);
  }
}

void PoolSize::Look(uint64_t most) {
  const Result<MemoryReading> reading = host_.Read();
  if (!reading.ok()) {
    if (!std::exchange(said_, true)) {
      EMS_LOG(kError, "mp_server", "dram.elastic: {}; the pool stays as large as it is",
              Message(reading.status()));
    }
    return;
  }
  const SegmentPool::Stats pool = options_.pool->stats();
  const uint64_t bytes = size_.Next(
      *reading, {.bytes = pool.bytes_max, .bytes_held = pool.bytes_held, .bytes_most = most},
      Clock::System().Now());
  if (bytes == pool.bytes_max) return;
  const bool smaller = bytes < pool.bytes_max && pool.bytes_max <= most;
  Resize(bytes, smaller                  ? "others on this machine need memory"
                : bytes > pool.bytes_max ? "there is memory to spare"
                                         : "as an operator says");
  if (smaller) options_.on_pressure(pool.bytes_max - bytes);
}

}  // namespace ems::server
