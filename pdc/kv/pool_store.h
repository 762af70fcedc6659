#pragma once
// The pool as a BlockStore that need not be there: while the controller cannot be reached, all
// blocks are absent, nothing can be stored, and a thread tries to connect again and again. A
// serving loop must start, and serve, without its cache.
//
// A pool that is there and hangs costs a reader all its time, and with it a prompt's first token.
// So the first read that ends so, ends this for all: from then on blocks are absent at once, and
// the thread asks for what had no answer until all of that has one, or is refused. A pool that is
// only slow answers the first question; what is stored goes on meanwhile, nobody waits for that.
//
// Bound: one attempt at a time, ClientOptions::start_timeout each, `retry_every` apart; kAskedMax
// keys are asked for, `retry_every` each time.
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "ems_context/block_store.h"
#include "mp_sdk/client.h"
#include "mp_sdk/options.h"

namespace ems::pdc {

struct PoolStoreOptions {
  ClientOptions client{};
  Duration retry_every = std::chrono::seconds(1);     // a breaker of the client opens for as long
  Duration first_patience = std::chrono::seconds(2);  // the constructor waits for the first attempt
  Verify verify = Verify::kDefault;                   // of reads that ask for nothing else
};

// Threading: thread-safe.
class PoolStore final : public context::BlockStore {
 public:
  explicit PoolStore(PoolStoreOptions options);
  ~PoolStore() override;
  PoolStore(const PoolStore&) = delete;
  PoolStore& operator=(const PoolStore&) = delete;

  static constexpr size_t kAskedMax = 64;

  // OK when connected and not hanging; else why not.
  Status status();
  // Of the connection's client; all zero until there is one.
  ClientStats stats() const;

  // Times that the pool was left alone because it hung.
  uint64_t hangs();

  // Without a connection, and while it hangs, every item fails with kUnavailable, at once.
  std::vector<Result<bool>> MultiExists(std::span<const KeyItem> items,
                                        const GetOptions& options) override;
  std::vector<Result<uint64_t>> MultiGet(std::span<const GetItem> items,
                                         const GetOptions& options) override;
  std::vector<Status> MultiGetRange(std::span<const RangeItem> items,
                                    const GetOptions& options) override;
  std::vector<Status> MultiPut(std::span<const PutItem> items, const PutOptions& options) override;
  bool Submit(std::function<void()>&& work) override;

 private:
  struct Question {
    std::string key, route_key;
  };
  struct State {
    Status status = Error(StatusCode::kUnavailable, "not connected yet");
    std::unique_ptr<Client> client;    // stays once it is there
    std::vector<Question> unanswered;  // while it hangs: what a read got no answer for
    uint64_t hangs = 0;
    bool stopping = false;
  };
  void Run();
  // False: this is stopping.
  bool Connect();
  void AwaitAnswer();
  GetOptions With(GetOptions options) const;
  // Null: not connected.
  Client* client() const { return client_.load(std::memory_order_acquire); }
  // Null: not connected, or it hangs.
  Client* reader() const { return hangs_.load(std::memory_order_acquire) ? nullptr : client(); }
  // Looks at what became of a read.
  template <typename Items, typename Outcomes>
  Outcomes Judge(const Items& items, std::string_view route_key, Outcomes outcomes);
  void Hang(std::vector<Question> unanswered);

  const PoolStoreOptions options_;
  Guarded<State> state_;
  std::condition_variable tried_;   // to connect
  std::condition_variable wakeup_;  // of the thread
  std::atomic<Client*> client_{nullptr};
  std::atomic<bool> hangs_{false};
  StopFlag stop_;
  Thread thread_;
};

}  // namespace ems::pdc
