// What must hold while several clients call one server over ways that harm one frame in seven
// (tests/support/frame_shaker.h): each value that is read is whole, of its own key, and none that
// was replaced or removed before; a call that was acknowledged was carried out, one that says it
// was not was not; keys that nobody wrote to stay as they are.
//
// EMS_FRAME_RUNS (20 by default) is how many runs there are, each with the next seed from EMS_SEED.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "fabric/rpc/rpc_server.h"
#include "tests/mp_server/session_fixture.h"
#include "tests/support/frame_shaker.h"
#include "tests/support/key_history.h"
#include "tests/support/long_run.h"
#include "tests/support/one_server_calls.h"
#include "tests/support/self_verifying.h"

namespace ems::server {
namespace {

using testing::FrameShaker;
using testing::Harm;
using testing::HarmCounts;
using testing::KeyHistory;
using testing::LastValues;
using testing::OneServerCalls;
using testing::VerifyValue;

constexpr size_t kClients = 3;
constexpr size_t kKeysOfEach = 6;
constexpr int kCallsOfEach = 40;
constexpr size_t kValueBytes = 40;
constexpr uint64_t kGuardPut = 1;

struct MixCounts {
  uint64_t calls = 0, hits = 0, misses = 0, failed = 0, unknown = 0;
  HarmCounts harms{};
};

// One run. Keys of it are named for the seed.
class FrameMix final {
 public:
  FrameMix(std::string server, NamespaceRef ns, uint64_t seed, MixCounts* counts)
      : server_(std::move(server)),
        ns_(ns),
        seed_(seed),
        counts_(counts),
        histories_(kClients * kKeysOfEach) {}

  void Run() {
    SCOPED_TRACE(fmt::format("EMS_SEED={}", seed_));
    OneServerCalls direct(server_, {.ns = ns_, .immutable = false, .value_bytes = kValueBytes});
    std::vector<std::string> guards;
    for (size_t key = 0; key < histories_.size(); ++key) guards.push_back(KeyOf(key) + "~");
    EXPECT_TRUE(testing::AllOk(direct.Put(guards, kGuardPut)));
    std::vector<std::unique_ptr<FrameShaker>> shakers;
    for (size_t i = 0; i < kClients; ++i)
      shakers.push_back(std::make_unique<FrameShaker>(server_, seed_ * kClients + i, &values_));
    std::vector<Thread> threads;
    threads.reserve(kClients);
    for (size_t i = 0; i < kClients; ++i) {
      threads.emplace_back("mix-" + std::to_string(i), [this, i, &shakers] {
        Caller caller(this, i, shakers[i]->address());
        caller.Run();
      });
    }
    threads.clear();
    for (const auto& shaker : shakers) {
      const HarmCounts harms = shaker->counts();
      for (size_t i = 0; i < harms.size(); ++i) counts_->harms[i] += harms[i];
    }
    shakers.clear();
    CheckAll(&direct, guards);
  }

 private:
  // Writes keys of its own, reads those of all. Threading: one thread.
  class Caller final {
   public:
    Caller(FrameMix* mix, size_t number, const std::string& address)
        : mix_(mix),
          number_(number),
          random_(mix->seed_ * kClients + number),
          calls_(address, {.ns = mix->ns_, .immutable = false, .value_bytes = kValueBytes}) {}

    void Run() {
      SCOPED_TRACE(fmt::format("EMS_SEED={}, client {}", mix_->seed_, number_));
      for (int i = 0; i < kCallsOfEach && !::testing::Test::HasFailure(); ++i) CallOnce();
      auto counts = mix_->shared_.Lock();
      mix_->counts_->calls += counted_.calls;
      mix_->counts_->hits += counted_.hits;
      mix_->counts_->misses += counted_.misses;
      mix_->counts_->failed += counted_.failed;
      mix_->counts_->unknown += counted_.unknown;
    }

   private:
    // One key, or several: those have another frame.
    std::vector<size_t> Keys(bool own) {
      const size_t count = random_() % 2 == 0 ? 1 : 2 + random_() % 3;
      const size_t first = random_() % kKeysOfEach;
      const size_t owner = own ? number_ : random_() % kClients;
      std::vector<size_t> keys;
      for (size_t i = 0; i < count; ++i)
        keys.push_back(owner * kKeysOfEach + (first + i) % kKeysOfEach);
      return keys;
    }
    void CallOnce() {
      ++counted_.calls;
      const uint64_t dice = random_() % 20;
      if (dice < 7) {
        Put(Keys(true));
      } else if (dice < 10) {
        Remove(Keys(true));
      } else if (dice < 15) {
        Get(Keys(false), kValueBytes);
      } else if (dice < 17) {
        Get(Keys(false), 8 + random_() % (kValueBytes - 8));
      } else if (dice < 19) {
        Exists(Keys(false));
      } else {
        (void)calls_.Ask(wire::Op::kStats);
      }
    }
    void Put(const std::vector<size_t>& keys) {
      const uint64_t put_id = mix_->next_put_.fetch_add(1);
      const bool durable = random_() % 4 == 0;
      const std::vector<Status> statuses =
          calls_.Put(mix_->Names(keys), put_id, {.overwrite = true, .durable = durable});
      for (size_t i = 0; i < keys.size(); ++i) {
        const std::optional<bool> done = Done(statuses[i]);
        auto history = mix_->histories_[keys[i]].Lock();
        if (done.value_or(true)) history->OnPut(put_id, true, done.has_value());
      }
    }
    void Remove(const std::vector<size_t>& keys) {
      const std::vector<Status> statuses = calls_.Remove(mix_->Names(keys));
      for (size_t i = 0; i < keys.size(); ++i) {
        const bool miss = statuses[i].code() == StatusCode::kNotFound;
        const std::optional<bool> done = miss ? true : Done(statuses[i]);
        auto history = mix_->histories_[keys[i]].Lock();
        if (done.value_or(true)) history->OnRemove(done.has_value());
      }
    }
    // Whether the change was made; nullopt: nobody knows.
    std::optional<bool> Done(const Status& status) {
      if (status.ok()) return true;
      const StatusCode code = status.code();
      if (code == StatusCode::kAborted || code == StatusCode::kDeadlineExceeded) {
        ++counted_.unknown;
        return std::nullopt;
      }
      ++counted_.failed;
      return false;
    }
    void Get(const std::vector<size_t>& keys, size_t bytes) {
      const std::vector<uint64_t> oldest = mix_->Oldest(keys);
      std::vector<std::string> values;
      const auto lengths = bytes == kValueBytes
                               ? calls_.Get(mix_->Names(keys), &values)
                               : calls_.GetRange(mix_->Names(keys), 0, bytes, &values);
      for (size_t i = 0; i < keys.size(); ++i) {
        if (Hit(keys[i], lengths[i], bytes)) {
          Judge(keys[i], mix_->PutIdOf(keys[i], values[i], calls_), oldest[i]);
        } else if (lengths[i].status().code() == StatusCode::kNotFound) {
          Judge(keys[i], KeyHistory::kMiss, oldest[i]);
        }
      }
    }
    void Exists(const std::vector<size_t>& keys) {
      const auto lengths = calls_.Lengths(mix_->Names(keys));
      for (size_t i = 0; i < keys.size(); ++i) (void)Hit(keys[i], lengths[i], kValueBytes);
    }
    bool Hit(size_t key, const Result<uint64_t>& length, uint64_t wanted) {
      if (!length.ok()) {
        ++(length.status().code() == StatusCode::kNotFound ? counted_.misses : counted_.failed);
        return false;
      }
      ++counted_.hits;
      EXPECT_EQ(*length, wanted) << mix_->KeyOf(key);
      return true;
    }
    // Others may write to it meanwhile, so that only what is too old is known; of its own keys it
    // knows all. Nothing is evicted here, so a miss has to be one.
    void Judge(size_t key, uint64_t put_id, uint64_t oldest) {
      auto history = mix_->histories_[key].Lock();
      const bool own = key / kKeysOfEach == number_;
      const bool allowed =
          own ? history->Allows(put_id, false) : put_id == KeyHistory::kMiss || put_id >= oldest;
      EXPECT_TRUE(allowed) << mix_->KeyOf(key) << ": found " << put_id << ", it must be "
                           << (own ? history->ToText() : fmt::format("{} or later", oldest));
    }

    FrameMix* const mix_;
    const size_t number_;
    std::mt19937_64 random_;
    OneServerCalls calls_;
    MixCounts counted_;
  };

  // Keys of one client differ in a few bits.
  std::string KeyOf(size_t key) const { return fmt::format("{}/{}", seed_, key); }
  std::vector<std::string> Names(const std::vector<size_t>& keys) const {
    std::vector<std::string> names;
    names.reserve(keys.size());
    for (const size_t key : keys) names.push_back(KeyOf(key));
    return names;
  }
  std::vector<uint64_t> Oldest(const std::vector<size_t>& keys) {
    std::vector<uint64_t> oldest;
    for (const size_t key : keys) {
      auto history = histories_[key].Lock();
      oldest.push_back(history->oldest());
    }
    return oldest;
  }
  // Of a value, or of its beginning; one that nobody put is a failure.
  uint64_t PutIdOf(size_t key, const std::string& value, const OneServerCalls& calls) const {
    uint64_t put_id = 0;
    std::memcpy(&put_id, value.data(), sizeof(put_id));
    EXPECT_EQ(value, calls.ValueOf(KeyOf(key), put_id).substr(0, value.size()))
        << "wrong bytes under " << KeyOf(key);
    return put_id;
  }
  // When nothing else goes on, and over a way that harms nothing.
  void CheckAll(OneServerCalls* direct, const std::vector<std::string>& guards) {
    std::vector<size_t> keys(histories_.size());
    for (size_t key = 0; key < keys.size(); ++key) keys[key] = key;
    std::vector<std::string> values;
    auto lengths = direct->Get(Names(keys), &values);
    for (const size_t key : keys) {
      const bool miss = lengths[key].status().code() == StatusCode::kNotFound;
      EXPECT_TRUE(miss || lengths[key].ok()) << lengths[key].status();
      const uint64_t found = miss ? KeyHistory::kMiss : PutIdOf(key, values[key], *direct);
      auto history = histories_[key].Lock();
      EXPECT_TRUE(history->Allows(found, false))
          << KeyOf(key) << ": found " << found << ", it must be " << history->ToText();
    }
    lengths = direct->Get(guards, &values);
    for (size_t i = 0; i < guards.size(); ++i) {
      EXPECT_TRUE(lengths[i].ok()) << guards[i] << ": " << lengths[i].status();
      EXPECT_EQ(VerifyValue("kv", guards[i], values[i]), kGuardPut) << guards[i];
    }
    direct->Remove(Names(keys));
    direct->Remove(guards);
  }

  const std::string server_;
  const NamespaceRef ns_;
  const uint64_t seed_;
  MixCounts* const counts_;
  Guarded<bool> shared_;  // held by who adds to counts_
  std::vector<Guarded<KeyHistory>> histories_;
  std::atomic<uint64_t> next_put_{kGuardPut + 1};
  Guarded<LastValues> values_;
};

class FrameMixTest : public SessionFixture {
 protected:
  FrameMixTest() : SessionFixture("frame_mix") {
    Serve(store_.get());
    fabric::RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.io_threads = 2;
    server_ = *fabric::RpcServer::Start(options, service_.get(), {});
  }
  std::unique_ptr<fabric::RpcServer> server_;
};

TEST_F(FrameMixTest, NoWrongValueNoOldOneAndNoOtherKeyUnderAllHarmsAtOnce) {
  const uint64_t runs = testing::NumberOfVariable("EMS_FRAME_RUNS", 20);
  const uint64_t seed = testing::ChosenSeed();
  MixCounts counts;
  for (uint64_t run = 0; run < runs && !HasFailure(); ++run)
    FrameMix(server_->address(), kNs, seed + run, &counts).Run();
  std::printf("%llu runs: %llu calls, %llu hits, %llu misses, %llu refused, %llu unknown\n",
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(counts.calls),
              static_cast<unsigned long long>(counts.hits),
              static_cast<unsigned long long>(counts.misses),
              static_cast<unsigned long long>(counts.failed),
              static_cast<unsigned long long>(counts.unknown));
  const auto of = [&](Harm harm) { return counts.harms[static_cast<size_t>(harm)]; };
  std::printf("harmed: %llu flips, %llu drops, %llu twice, %llu out of order, %llu late\n",
              static_cast<unsigned long long>(of(Harm::kFlip)),
              static_cast<unsigned long long>(of(Harm::kDrop)),
              static_cast<unsigned long long>(of(Harm::kTwice)),
              static_cast<unsigned long long>(of(Harm::kOutOfOrder)),
              static_cast<unsigned long long>(of(Harm::kDelay)));
  EXPECT_GT(counts.hits, runs * 10);
  EXPECT_GT(counts.unknown, runs / 4);
  for (size_t harm = 0; harm < counts.harms.size(); ++harm)
    EXPECT_GT(counts.harms[harm], 0U) << harm;
}

}  // namespace
}  // namespace ems::server
