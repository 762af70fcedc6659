#pragma once
// Sends the calls of one client to the servers in batches: a batch of each kind of items, its
// deadline, and the result of each item.
//
// One-sided reads do not pass through here. Errors of an item: those of Client.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/status.h"
#include "mp_sdk/internal/batch.h"
#include "mp_sdk/internal/call_latencies.h"
#include "mp_sdk/internal/router.h"
#include "mp_sdk/options.h"

namespace ems::internal {

// Threading: thread-safe once Bind has been called.
class ServerCalls final {
 public:
  // All outlive this; without `latencies` no call is timed.
  ServerCalls(const ClientOptions& options, Router* router, CallLatencies* latencies = nullptr)
      : options_(options), router_(router), latencies_(latencies) {}
  // The namespace that all calls are for, and whether its keys have one value for ever. Call once,
  // before the first call.
  void Bind(NamespaceRef ns, bool immutable = false) {
    ns_ = ns;
    immutable_ = immutable;
  }

  // `wanted`, or, when it is 0, the client's default for a call that moves so many bytes.
  Deadline DeadlineFor(Duration wanted, uint64_t bytes) const;
  // A batch without items. `options` null: a call that is no read.
  Batch MakeBatch(wire::Op op, Deadline deadline, const GetOptions* options = nullptr) const;
  BatchItem MakeItem(std::string_view key, std::string_view route_key) const;
  Batch MakeBatch(wire::Op op, std::span<const KeyItem> items, Deadline deadline,
                  const GetOptions* options = nullptr) const;
  // Gives items whose key is not a key their error, and runs the rest. Blocks up to the deadline.
  void Run(Batch* batch) const;

  // Lengths, values and ranges (KeyItem, GetItem, RangeItem); one result an item: its length. Fills
  // the items' `tier`.
  template <typename Item>
  std::vector<Result<uint64_t>> Ask(std::span<const Item> items, const GetOptions& options,
                                    Deadline deadline) const;
  // One value into memory that is allocated to fit. `checksum` may be null.
  Result<uint64_t> AskWhole(std::string_view key, const GetOptions& options, std::string* value,
                            uint64_t* checksum) const;

 private:
  const ClientOptions& options_;
  Router* const router_;
  CallLatencies* const latencies_;
  NamespaceRef ns_;
  bool immutable_ = false;
};

}  // namespace ems::internal
