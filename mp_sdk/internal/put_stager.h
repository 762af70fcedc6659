#pragma once
// Values in ordinary memory on their way to a server of this host: a copy into registered memory
// costs less than the socket, and a scratch buffer that is used again and again stays in the cache.
// Large ones are copied while the server copies what is there already. A call that finds no room
// in what the servers have mapped goes over the socket, and has more of it made for the next.
//
// Bound: kCallBytesMax a call; kSparesMax buffers of kSpareBytesMax are kept between calls.
#include <cstdint>
#include <vector>

#include "cluster/dht_view.h"
#include "common/guarded.h"
#include "mp_sdk/internal/batch.h"
#include "mp_sdk/internal/local_servers.h"
#include "mp_sdk/internal/staging_memory.h"
#include "mp_sdk/staging_buffer.h"

namespace ems::internal {

// Threading: thread-safe.
class PutStager final {
 public:
  static constexpr uint64_t kValueBytesMin = 16 * kKiB;  // below it the socket is as fast
  static constexpr uint64_t kCallBytesMax = 64 * kMiB;
  static constexpr uint64_t kSpareBytesMax = 8 * kMiB + StagingMemory::kUnit;
  static constexpr size_t kSparesMax = 4;
  static constexpr uint64_t kFollowBytesMin = 512 * kKiB;  // a call from here on is followed
  static constexpr uint64_t kFollowStep = 64 * kKiB;
  static constexpr uint64_t kLookEvery = 1 * kMiB;  // of copying, at the time

  // Whether a value of `batch` would gain from being staged: large enough, not staged, and owned by
  // a server of this host.
  static bool Wants(const Batch& batch, LocalServers* locals);
  // Finds room for such values whose server has registered `memory`, tells their items where, and
  // copies them, or leaves that to batch->meanwhile, which stops at the batch's deadline. The
  // buffer must live until the batch is done; empty: nothing is staged.
  StagingBuffer Stage(Batch* batch, const DhtView& view, LocalServers* locals,
                      StagingMemory* memory);
  // Keeps the buffer for the next call.
  void GiveBack(StagingBuffer buffer);

 private:
  // A buffer within the first `below` bytes of `memory`.
  StagingBuffer TakeSpare(uint64_t bytes, uint64_t below, StagingMemory* memory);

  Guarded<std::vector<StagingBuffer>> spares_;
};

}  // namespace ems::internal
