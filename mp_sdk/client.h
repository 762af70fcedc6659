#pragma once
// ems::Client: Put and Get in one hop to the server that owns the key. To list keys: key_scan.h.
//
// Every call has a deadline. A miss is NotFound without text. When servers are unreachable, calls
// return Unavailable quickly (a refused connection: at once; then a circuit breaker keeps further
// calls cheap), and the engine goes on.
//
// Errors of all calls, beside those named at each:
//   kInvalidArgument     key empty or above 512 bytes
//   kUnavailable         server unreachable, fenced or no owner
//   kDeadlineExceeded    the call's time is over
//   kDataLoss            bytes did not match their checksum, nor when asked for again
//   kFailedPrecondition  namespace deleted, or the view did not settle in 3 hops
//   kAborted             Put, Remove and their Multi forms: the server went before it answered, and
//                        "outcome unknown" says that the change may have been made, or not; or it
//                        is made in memory, and the SSD has not taken it in time. It is not
//                        repeated: that could undo what others have done since. Put without
//                        overwrite in an immutable namespace is repeated instead. With
//                        kDeadlineExceeded the text says the same of a change that was sent.
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "mp_sdk/client_stats.h"
#include "mp_sdk/object_view.h"
#include "mp_sdk/options.h"
#include "mp_sdk/staging_buffer.h"

namespace ems {

namespace wire {
struct FrameHeader;
}

// Threading: thread-safe. A sync call does its work on the caller's thread; Async calls run on
// async_threads, callbacks included. A process that is to fork
// must do so before it connects: a child has neither the threads nor the channel.
class Client final {
 public:
  // Connects to the controller, waits for a view and the namespace.
  // Errors: kNotFound  no such namespace    kUnavailable  no controller, or no view within
  // start_timeout
  static Result<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  // Finishes the Async calls that are queued (each has its deadline), then disconnects.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Stores `value` under `key`. Storing the same bytes again is a success that stores nothing.
  // Errors: kAlreadyExists  other content, and no overwrite    kResourceExhausted  no room or quota
  // within the deadline
  //   kOutOfRange  above the server's largest value    kUnimplemented  the durability asked for is
  //   not offered
  Status Put(std::string_view key, ConstBuffers value, const PutOptions& options = {});

  // Copies the value of `key` into `into` and returns its length.
  // Errors: kNotFound  miss    kOutOfRange  `into` is too small (nothing of it counts)
  // After any error but kNotFound the contents of `into` are undefined.
  Result<uint64_t> Get(std::string_view key, MutableBuffers into, const GetOptions& options = {});
  // The same into memory that is allocated to fit.
  Result<std::string> Get(std::string_view key, const GetOptions& options = {});
  // The value in place: no copy when its server is on this machine and shares its memory, otherwise
  // a copy that the view owns. Header and key are verified; the payload by view.Verify() or as
  // `options.verify` says, where kDefault is kSampled at most: a pass over the bytes is what a view
  // is there to avoid.
  // Errors: kNotFound  miss    kResourceExhausted  this client's views pin as much as they may
  Result<ObjectView> GetView(std::string_view key, const GetOptions& options = {});
  // Memory for values that are to be Put: a server on this machine copies them once, straight from
  // here. 4 KiB aligned. Errors: kResourceExhausted  staging_bytes are in use    kInvalidArgument 0
  Result<StagingBuffer> AllocateBuffer(uint64_t bytes);

  // Copies bytes [offset, offset + into.size_bytes()) of the value. They are verified like a whole
  // value. Errors: kNotFound  miss    kOutOfRange  the range ends beyond the value
  Status GetRange(std::string_view key, uint64_t offset, MutableBuffers into,
                  const GetOptions& options = {});
  // Many ranges, of one value or of several: a result an item in the order of the items.
  // One deadline for all. Errors of an item: as above    kOutOfRange  the value is not as long as
  // item.whole_bytes says. Cost: over a socket one round trip a server (or more, beyond 16,384
  // items or 64 MiB), the servers in parallel; pieces of 64 KiB that a range covers in part are
  // hashed whole.
  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options = {});
  // The length of the value. Errors: kNotFound  miss
  Result<uint64_t> Stat(std::string_view key, const GetOptions& options = {});
  Result<bool> Exists(std::string_view key, const GetOptions& options = {});
  // Errors: kNotFound  there was none
  Status Remove(std::string_view key, const GetOptions& options = {});

  // Batches: one frame a server, all servers at once, a result an item in the order of the items.
  // One deadline for all.
  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options = {});
  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options = {});
  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options = {});
  // Length and tier of each value, always asked of the servers: one-sided reads see DRAM alone.
  // Errors of an item: kNotFound  miss
  std::vector<Result<ObjectStat>> MultiStat(std::span<const KeyItem> items,
                                            const GetOptions& options = {});
  std::vector<Status> MultiRemove(std::span<const KeyItem> items, const GetOptions& options = {});

  // Async: submit never blocks; keys are copied, buffers must live until completion. With
  // async_queue_max calls waiting the result is kResourceExhausted, delivered on the caller's
  // thread. `done` runs on an "ems-sdk" thread; it must not block.
  void PutAsync(std::string_view key, ConstBuffers value, const PutOptions& options,
                std::function<void(Status)> done);
  void GetAsync(std::string_view key, MutableBuffers into, const GetOptions& options,
                std::function<void(Result<uint64_t>)> done);
  std::future<Status> PutAsync(std::string_view key, ConstBuffers value,
                               const PutOptions& options = {});
  std::future<Result<uint64_t>> GetAsync(std::string_view key, MutableBuffers into,
                                         const GetOptions& options = {});
  // Runs any work that uses this client, a batch for instance, like an Async call. False when the
  // queue is full.
  [[nodiscard]] bool Submit(std::function<void()>&& work);

  // JSON statistics of one server, by node name. Errors: kNotFound  no such node in the view
  Result<std::string> ServerStats(std::string_view node_name, Duration timeout);

  // Cost: about 20 µs for each thread that has called.
  ClientStats stats() const;
  // The view and namespace that calls use now.
  ViewCache& views();
  NamespaceInfo name_space() const;

 private:
  friend class KeyScan;
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  // A frame to one server, and the body of its answer. `timeout` 0: the client's default.
  Result<std::string> Ask(const NodeInfo& node, const wire::FrameHeader& header, ConstBytes body,
                          Duration timeout);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems
