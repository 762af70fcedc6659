#pragma once
// What several clients do to a few keys that they share while faults come and go: Puts that
// overwrite, Removes, Gets, views of values in place and the batched forms of all, each with a
// deadline of its own. All of it is on record.
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_sdk/client.h"
#include "tests/fault/chaos/key_record.h"

namespace ems::testing {

// Of keys, also those of batches.
struct ChaosCounts {
  uint64_t calls = 0;                                   // a batch is one
  uint64_t acknowledged = 0, unknown = 0, refused = 0;  // Puts and Removes
  uint64_t hits = 0, misses = 0, errors = 0;            // reads
  Duration latest{0};                                   // a call's end after its deadline
};

// Threading: one thread drives, the load's own share what is Guarded.
class ChaosLoad final {
 public:
  struct Options {
    uint64_t keys = 40;
    int threads = 2;  // for each client
    // A call that ends later than so long after its deadline is a broken guarantee.
    Duration late_max = std::chrono::seconds(5);
    // A Put of unknown outcome takes effect by so long after its deadline, or never. Servers look
    // at the clock when a value becomes visible; what is longer than a moment is the machine's.
    Duration effect_max = std::chrono::seconds(2);
  };
  struct Named {
    std::string name;
    Client* client;  // outlives this or its Stop
  };
  // `complain` hears of each broken guarantee, from any thread.
  ChaosLoad(const Options& options, std::vector<Named> clients,
            std::function<void(const std::string&)> complain);
  ~ChaosLoad() { (void)Stop(); }

  // `pause`: servers may sleep for so long between that look at the clock and the value.
  void Start(uint64_t seed, Duration pause);
  // False: a call does not end, nor do the threads then.
  bool Stop();
  // A Put of each key by each client, until each has succeeded, and then a Get of each by each,
  // while no load runs. False: not within `patience`.
  bool PutAll(Duration patience);
  void ReadAll();
  // What no order of the calls explains, by key (KeyRecord::Check). Between Stop and Start.
  std::vector<std::string> Check(TimePoint origin);
  ChaosCounts counts();

 private:
  using Random = std::mt19937_64;
  struct Prepared {  // a Put
    uint64_t key;
    uint64_t put_id;
    std::string name, value;
  };

  void Run(const Named& who, uint64_t seed);
  void CallOnce(const Named& who, Random* random);
  Prepared Prepare(uint64_t key, Random* random);
  void PutMany(const Named& who, const std::vector<uint64_t>& keys, Random* random);
  Status PutOne(const Named& who, uint64_t key, Duration timeout, Random* random);
  void RemoveOnce(const Named& who, const std::vector<uint64_t>& keys, Random* random);
  void GetOnce(const Named& who, uint64_t key, Duration timeout);
  void ViewOnce(const Named& who, uint64_t key, Random* random);
  void GetMany(const Named& who, const std::vector<uint64_t>& keys, Random* random);
  // Notes what ended now.
  TimedCall Ended(const Named& who, TimePoint begun, Duration timeout, const char* what);
  void OnPut(const Prepared& put, const TimedCall& call, Duration timeout, const Status& status);
  void OnRemove(uint64_t key, const TimedCall& call, const Status& status);
  void OnRead(uint64_t key, const TimedCall& call, const Status& status, std::string_view value);
  std::vector<uint64_t> SomeKeys(size_t most, Random* random) const;

  const Options options_;
  const std::vector<Named> clients_;
  const std::function<void(const std::string&)> complain_;
  std::vector<Guarded<KeyRecord>> records_;  // by the key's number
  std::atomic<uint64_t> next_put_id_{1};
  Guarded<ChaosCounts> counts_;
  std::optional<StopFlag> stop_;  // of this Start
  Duration pause_{0};             // likewise
  std::atomic<int> running_{0};   // threads
  std::vector<Thread> threads_;
};

}  // namespace ems::testing
