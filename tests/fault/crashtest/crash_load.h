#pragma once
// What runs in a namespace while a server is killed: Puts, Removes and Gets from several threads,
// of keys whose histories are kept, and afterwards a look at each key.
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
#include "tests/support/key_history.h"

namespace ems::testing {

// For how long a life of a server holds overwritten values back, as a flag: at once and soon, so
// that it dies while they are written, and longer than it lives. Others each time: four lives in a
// row have all of them. `written`: those alone with which values are held back and written.
std::vector<std::string> NextQuiet(uint64_t* life, bool written);
// How many values that server has held back and written when their keys were quiet, in this life;
// 0: it does not answer.
uint64_t QuietWrites(Client* client, const std::string& server);

// Threading: one thread drives, the threads of the load share what is Guarded.
class CrashLoad final {
 public:
  struct Options {
    std::string name_space = "default";
    int threads = 3;
    uint64_t keys = 120;            // spread over the threads
    bool may_be_evicted = false;    // durable values too, for want of room
    bool may_lose_durable = false;  // an acknowledged durable value may be gone; none older is back
  };
  struct Checked {
    uint64_t keys = 0, hits = 0;
  };
  // `complain` hears of each broken guarantee, from any thread.
  CrashLoad(const Options& options, std::function<void(const std::string&)> complain);
  ~CrashLoad() { Stop(); }

  // `client` is of this namespace and outlives the load or its Stop.
  void Start(Client* client, uint64_t seed);
  void Stop();
  // Reads every key, while no load runs. `server`: whose tier may ask for a moment of rest.
  // `may_die`: an error is no broken guarantee.
  Checked Check(Client* client, const std::string& server, bool may_die);
  uint64_t calls() const { return calls_.load(); }

 private:
  uint64_t KeyOf(uint64_t thread, std::mt19937_64& random) const;
  void CallOnce(uint64_t thread, std::mt19937_64& random);
  void PutOnce(uint64_t number, const std::string& key, std::mt19937_64& random);
  bool GetOnce(uint64_t number, const std::string& key, bool may_fail);
  bool WaitWhileTierRests();

  const Options options_;
  const std::function<void(const std::string&)> complain_;
  std::vector<Guarded<KeyHistory>> histories_;  // by the key's number
  std::atomic<uint64_t> next_put_id_{1};
  std::atomic<uint64_t> calls_{0};
  Client* client_ = nullptr;
  std::string server_;    // that is being checked; empty while the load runs
  uint64_t refused_ = 0;  // reads, by that server
  int rests_ = 0;
  std::optional<StopFlag> stop_;  // of this Start
  std::vector<Thread> threads_;
};

}  // namespace ems::testing
