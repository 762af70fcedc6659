#pragma once
// Reads and writes of files, many at once: io_uring where the kernel offers it, a pool of threads
// where it does not.
//
// Bound: the caller keeps at most `depth` operations under way; more wait their turn in the
// kernel's, the engine's or the pool's queue, none is refused. A callback must not block for long:
// all callbacks come from a few threads, 4 at most (io_uring) or 8 (pool), and one that checks
// 64 KiB or more that it has read holds up no other, while one of these is free.
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/status.h"

namespace ems::ssd {

// One read or write of one file. Lives, with the memory it names, until OnDone has been called.
class IoOp {
 public:
  virtual ~IoOp() = default;
  // `result`: bytes transferred, or -errno. A short transfer is possible: the file ends there.
  // Called on a thread of the engine; the op may be destroyed or submitted again in here.
  virtual void OnDone(int64_t result) = 0;

  int fd = -1;
  bool write = false;
  uint64_t offset = 0;
  std::span<const iovec> parts;  // 1024 at most
  // Pairs Submit with OnDone for what reads memory orders: the kernel's own are not visible to it.
  std::atomic<bool> submitted{false};
};

// Threading: thread-safe.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // Never waits for the disk. OnDone follows in every case.
  virtual void Submit(IoOp* op) = 0;
  // The same for several, at the cost of one.
  virtual void SubmitAll(std::span<IoOp* const> ops) {
    for (IoOp* op : ops) Submit(op);
  }
  virtual std::string_view name() const = 0;  // "io_uring" or "threads"
};

enum class IoKind : uint8_t { kAuto, kRing, kThreads };

// Threads: "ems-ssd-io-N": half as many as cores, 2 to 4 (io_uring), or 8 at most. The engine waits
// for what is under way when it is destroyed. `why_not_ring` receives the kernel's reason when
// kAuto falls back. Errors: kUnavailable  kRing, and the kernel refuses it
Result<std::unique_ptr<IoEngine>> MakeIoEngine(IoKind kind, uint32_t depth,
                                               std::string* why_not_ring);

}  // namespace ems::ssd
