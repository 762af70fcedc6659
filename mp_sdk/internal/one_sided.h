#pragma once
// Reads of the servers on this host without their help, in the terms of Client: what is settled
// here needs no frame; the rest goes over the socket.
//
// A call takes the gate, the routes and the clock once, whatever the number of its keys. Nothing
// here blocks or retries for longer than ObjectReader's attempts.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/copy_crew.h"
#include "common/status.h"
#include "mp_sdk/internal/call_latencies.h"
#include "mp_sdk/internal/local_servers.h"
#include "mp_sdk/internal/object_reader.h"
#include "mp_sdk/internal/stripe.h"
#include "mp_sdk/object_view.h"
#include "mp_sdk/options.h"

namespace ems::internal {

inline CopyRequest CopyOf(const GetItem& item) { return {.into = item.into, .grow = item.grow}; }
inline CopyRequest CopyOf(const RangeItem& item) {
  return {
      .into = item.into, .ranged = true, .offset = item.offset, .whole_bytes = item.whole_bytes};
}

struct OneSidedStats {
  uint64_t one_sided = 0, not_attached = 0, not_current = 0, not_conclusive = 0, mismatches = 0;
};

// Threading: thread-safe.
class OneSided final {
 public:
  // All must outlive this; without `latencies` no call is timed, without `crew` the caller's thread
  // copies alone.
  OneSided(LocalServers* servers, const NamespaceInfo& ns, CallLatencies* latencies = nullptr,
           CopyCrew* crew = nullptr)
      : servers_(servers), ns_(ns.ref), policy_(ns.checksum), latencies_(latencies), crew_(crew) {}

  // Single keys: the answer, or nullopt when the server has to be asked.
  // Cost: no allocation on a hit (but for `grow` and once a thread), no lock.
  std::optional<Result<uint64_t>> Lookup(const KeyItem& item, const GetOptions& options);
  std::optional<Result<uint64_t>> Read(std::string_view key, std::string_view route_key,
                                       const CopyRequest& request, const GetOptions& options);
  std::optional<Result<ObjectView>> View(const KeyItem& item, const GetOptions& options);
  // Has the memory mapped that large values lie in which were put, so that they are read one-sided
  // from the first time on. Counts as no use and no read. Shape: statuses is [items]. Cost: a
  // look-up a value.
  void Prepare(std::span<const PutItem> items, std::span<const Status> statuses);

  // Many keys: `results[i]` is set for each item that is settled, the numbers of the others are
  // appended to `left`. Shape: results is [items]. Values are lengths. Reads look at the time after
  // each kLookEvery bytes: what is not there by then is left. Cost: as above; the cache misses of
  // kWindow keys overlap.
  void MultiLookup(std::span<const KeyItem> items, const GetOptions& options,
                   std::span<Result<uint64_t>> results, std::vector<uint32_t>* left);
  // GetItem or RangeItem.
  template <typename Item>
  void MultiRead(std::span<const Item> items, const GetOptions& options, Deadline deadline,
                 std::span<Result<uint64_t>> results, std::vector<uint32_t>* left);

  OneSidedStats stats() const;

 private:
  static constexpr size_t kWindow = 32;
  static constexpr uint64_t kLookEvery = 4 * kMiB;
  enum Counter : size_t {
    kOneSided,
    kNotAttached,
    kNotCurrent,
    kNotConclusive,
    kMismatches,
    kCounters
  };
  struct Visit;
  struct Call;
  // A key on its way.
  struct Target {
    Visit* visit = nullptr;  // nullptr: the server has to be asked
    Hash128 hash;
  };

  Target Aim(std::string_view key, std::string_view route_key, Call* call) const;
  std::optional<Result<uint64_t>> Settle(ReadOutcome outcome, const FoundObject& found,
                                         const Target& target, const CopyRequest* request,
                                         Call* call) const;
  struct Window {
    size_t begin = 0;
    size_t count = 0;
    std::array<Target, kWindow> targets;
    std::array<ObjectReader::Hint, kWindow> hints;
  };
  template <typename Item>
  void Open(std::span<const Item> items, size_t begin, Call* call, Window* window) const;
  // `deadline`: of values that are copied, or nullptr.
  template <typename Item, typename One>
  void Sweep(std::span<const Item> items, const Deadline* deadline, Call* call,
             std::span<Result<uint64_t>> results, std::vector<uint32_t>* left, One one);
  bool WantsChecksum(Verify verify, bool view) const;
  void Prepare(const PutItem& item);

  LocalServers* servers_;
  const NamespaceRef ns_;
  const ChecksumPolicy policy_;
  CallLatencies* const latencies_;
  CopyCrew* const crew_;
  StripedCounters<kCounters> counters_;
};

}  // namespace ems::internal
