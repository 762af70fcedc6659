#pragma once
// Many watchers of a controller, each on a gRPC stream of its own; streams share few connections.
//
// They read bytes and look only for the number of the view: what a client does with it costs the
// client. One watcher a connection is a real one, and follows each delta with its checksum.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/harness/latency_recorder.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

struct WatchLoadOptions {
  std::string controller;
  size_t watchers = 10'000;
  size_t connections = 16;
};

// What happened to a view on its way to all watchers.
struct Arrivals {
  LatencyRecorder latency;  // from the moment that was given to Collect
  uint64_t bytes_max = 0;   // of a message that brought it
};

// Threading: one thread (the owner's); streams run on gRPC's.
class WatchLoad final {
 public:
  // Opens all streams, some hundred at a time, and waits until each has a view.
  // Errors: kUnavailable  a stream ended    kDeadlineExceeded  some have none after two minutes
  static Result<std::unique_ptr<WatchLoad>> Start(const WatchLoadOptions& options);
  // Ends all streams.
  ~WatchLoad();
  WatchLoad(const WatchLoad&) = delete;
  WatchLoad& operator=(const WatchLoad&) = delete;

  // From now on a watcher has arrived when it has a view of this epoch or a later one.
  void Expect(uint64_t epoch);
  // Waits until all have arrived, and says when. Errors: kDeadlineExceeded; kUnavailable  a stream
  // ended; kDataLoss  a real watcher could not follow
  Result<Arrivals> Collect(TimePoint since, Deadline deadline);

 private:
  struct Impl;
  explicit WatchLoad(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::bench
