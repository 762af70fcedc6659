// What must hold on a way that flips bits, drops answers or delivers them twice (and, in
// frame_mix_test.cc, all of it at once and out of order): what a call
// returns is the value of its own key or an error, no other key changes, and nothing old comes
// back. Client and server are those of the SDK and of mp-server; between them each frame is taken
// apart.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/rpc/rpc_server.h"
#include "tests/mp_server/session_fixture.h"
#include "tests/support/frame_shaker.h"
#include "tests/support/one_server_calls.h"
#include "tests/support/scripted_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/tcp_proxy.h"

namespace ems::server {
namespace {

using fabric::RpcChannel;
using std::chrono::seconds;
using testing::AllOk;
using testing::HeaderOf;
using testing::OneServerCalls;
using testing::ReadFrame;
using testing::ScriptedServer;
using testing::VerifyValue;
using testing::Way;
using testing::WirePeer;
using testing::WithFlippedBit;
using wire::Op;

constexpr size_t kValueBytes = 24;
// The names of two of them differ in one bit.
const std::vector<std::string> kKeys = {"block-0", "block-1", "block-2", "block-3"};

// Passes frames on, and one of them as it is told. Threading: thread-safe; one connection at a time
// is served by a thread of its own, on which changes run.
class FrameProxy final {
 public:
  // What to pass on in place of a frame; nothing: the connection ends.
  using Change = std::function<std::string(const std::string&)>;

  explicit FrameProxy(std::string target)
      : target_(std::move(target)), server_([this](WirePeer* client, int) { Carry(client); }) {}

  std::string address() const { return server_.address(); }
  fabric::Address socket_address() const { return server_.socket_address(); }
  // Of the next frame of that op, request or answer.
  void Arm(Way way, Op op, Change change) {
    auto order = order_.Lock();
    *order = Order{way, op, std::move(change)};
  }
  // Whether that has happened; it will not any more.
  bool Disarm() {
    auto order = order_.Lock();
    return !std::exchange(*order, std::nullopt).has_value();
  }

 private:
  struct Order {
    Way way;
    Op op;
    Change change;
  };
  std::string Pass(Way way, Op op, const std::string& frame) {
    Change change;
    {
      auto order = order_.Lock();
      if (!*order || (*order)->way != way || (*order)->op != op) return frame;
      change = std::move((*order)->change);
      order->reset();
    }
    return change(frame);
  }
  void Carry(WirePeer* client) {
    WirePeer server = WirePeer::Connect(target_);
    while (const std::optional<std::string> request = ReadFrame(client)) {
      const Op op = HeaderOf(*request).op;
      const std::string passed = Pass(Way::kToTarget, op, *request);
      if (passed.empty() || !server.Send(passed)) return;
      const std::optional<std::string> answer = ReadFrame(&server);
      if (!answer) return;
      const std::string back = Pass(Way::kToClient, op, *answer);
      if (back.empty() || !client->Send(back)) return;
    }
  }

  const std::string target_;
  Guarded<std::optional<Order>> order_;
  ScriptedServer server_;
};

class DamagedFramesTest : public SessionFixture {
 protected:
  DamagedFramesTest() : SessionFixture("damaged_frames") {
    Serve(store_.get());
    fabric::RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.io_threads = 1;
    server_ = *fabric::RpcServer::Start(options, service_.get(), {});
    proxy_ = std::make_unique<FrameProxy>(server_->address());
    direct_ = CallsTo(server_->address());
  }
  ~DamagedFramesTest() override {
    client_.reset();  // its connection keeps the proxy busy
    proxy_.reset();
    server_.reset();
  }
  void SetUp() override {
    EXPECT_TRUE(AllOk(direct_->Put(kKeys, 1)));
    for (const std::string& key : kKeys) holds_[key] = 1;
  }
  static std::unique_ptr<OneServerCalls> CallsTo(const std::string& address,
                                                 bool immutable = false) {
    return std::make_unique<OneServerCalls>(
        address,
        OneServerCalls::Options{.ns = kNs, .immutable = immutable, .value_bytes = kValueBytes});
  }
  // What the server has: by key the Put, 0 for nothing.
  std::map<std::string, uint64_t> Stored(OneServerCalls* caller) {
    std::map<std::string, uint64_t> stored;
    std::vector<std::string> values;
    const auto lengths = caller->Get(kKeys, &values);
    for (size_t i = 0; i < kKeys.size(); ++i) {
      if (lengths[i].status().code() == StatusCode::kNotFound) {
        stored[kKeys[i]] = 0;
        continue;
      }
      EXPECT_TRUE(lengths[i].ok()) << lengths[i].status();
      const std::optional<uint64_t> put = VerifyValue("kv", kKeys[i], values[i]);
      EXPECT_TRUE(put) << "a wrong value under " << kKeys[i];
      stored[kKeys[i]] = put.value_or(~uint64_t{0});
    }
    return stored;
  }
  // Makes the call once for each bit of its request and of its answer. `call` does what it does and
  // checks what it returns.
  void FlipEachBit(Op op, const std::function<void()>& call) {
    for (const Way way : {Way::kToTarget, Way::kToClient}) {
      size_t bits = 1;
      for (size_t bit = 0; bit < bits; ++bit) {
        proxy_->Arm(way, op, [&](const std::string& frame) {
          bits = frame.size() * 8;
          return WithFlippedBit(frame, bit);
        });
        SCOPED_TRACE(fmt::format("{} of {}, bit {} of {}",
                                 way == Way::kToTarget ? "request" : "answer", wire::OpName(op),
                                 bit, bits));
        call();
        ASSERT_TRUE(proxy_->Disarm()) << "no such frame has passed";
        const std::map<std::string, uint64_t> stored = Stored(client_.get());
        ASSERT_EQ(stored, holds_);
        ++flips_;
      }
    }
  }
  // The same for the report that a value came damaged, a read that is asked for once more, and its
  // answer.
  void FlipEachBitOfAReport(Op op, const std::function<void()>& call) {
    for (const Way way : {Way::kToTarget, Way::kToClient}) {
      size_t bits = 1;
      for (size_t bit = 0; bit < bits; ++bit) {
        uint16_t flags = 0;
        const auto flip = [&](const std::string& frame) {
          bits = frame.size() * 8;
          flags = HeaderOf(frame).flags;
          return WithFlippedBit(frame, bit);
        };
        proxy_->Arm(Way::kToClient, op, [&](const std::string& answer) {
          proxy_->Arm(way, op, flip);
          return WithFlippedBit(answer, answer.size() * 8 - 1);  // of its last value
        });
        SCOPED_TRACE(fmt::format("{} of the report, bit {} of {}",
                                 way == Way::kToTarget ? "request" : "answer", bit, bits));
        call();
        ASSERT_TRUE(proxy_->Disarm()) << "nothing was reported";
        if (way == Way::kToTarget) {
          ASSERT_EQ(flags & wire::kFlagCheck, wire::kFlagCheck);
        }
        const std::map<std::string, uint64_t> stored = Stored(client_.get());
        ASSERT_EQ(stored, holds_);
        ++flips_;
      }
    }
  }
  // Of a call that was to change `keys` to what `put` stores, or to nothing: 0.
  void Changed(const std::vector<std::string>& keys, const std::vector<Status>& statuses,
               uint64_t put) {
    const std::map<std::string, uint64_t> stored = Stored(client_.get());
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t found = stored.at(keys[i]);
      if (statuses[i].ok()) {
        EXPECT_EQ(found, put) << "acknowledged";
      } else if (statuses[i].code() == StatusCode::kAborted) {
        EXPECT_TRUE(found == put || found == holds_[keys[i]]) << found;
      } else {
        EXPECT_EQ(found, holds_[keys[i]]) << "not done, it says: " << statuses[i];
      }
      holds_[keys[i]] = found;
    }
  }

  std::unique_ptr<fabric::RpcServer> server_;
  std::unique_ptr<FrameProxy> proxy_;
  std::unique_ptr<OneServerCalls> direct_;  // past the proxy
  std::unique_ptr<OneServerCalls> client_;
  std::map<std::string, uint64_t> holds_;  // what the server should have
  uint64_t next_put_ = 2;
  int flips_ = 0;
};

TEST_F(DamagedFramesTest, AFlippedBitIsNeverAnotherValueNorAChangeOfAnotherKey) {
  client_ = CallsTo(proxy_->address());
  int answered = 0;
  const auto right = [&](const Result<uint64_t>& length, uint64_t wanted) {
    EXPECT_NE(length.status().code(), StatusCode::kNotFound) << "a hit that is denied";
    if (!length.ok()) return false;
    ++answered;
    EXPECT_EQ(*length, wanted);
    return true;
  };
  for (const size_t count : {size_t{1}, size_t{2}}) {
    const std::vector<std::string> keys(kKeys.begin(), kKeys.begin() + static_cast<int>(count));
    const bool multi = count > 1;
    const auto get = [&] {
      std::vector<std::string> values;
      const auto lengths = client_->Get(keys, &values);
      for (size_t i = 0; i < count; ++i) {
        if (!right(lengths[i], kValueBytes)) continue;
        EXPECT_EQ(VerifyValue("kv", keys[i], values[i]), holds_[keys[i]]);
      }
    };
    FlipEachBit(multi ? Op::kMultiGet : Op::kGet, get);
    if (!multi) FlipEachBitOfAReport(Op::kGet, get);
    FlipEachBit(multi ? Op::kMultiGetRange : Op::kGetRange, [&] {
      std::vector<std::string> parts;
      const auto lengths = client_->GetRange(keys, 8, 10, &parts);
      for (size_t i = 0; i < count; ++i) {
        if (!right(lengths[i], 10)) continue;
        EXPECT_EQ(parts[i], client_->ValueOf(keys[i], holds_[keys[i]]).substr(8, 10));
      }
    });
    FlipEachBit(multi ? Op::kMultiExists : Op::kExists, [&] {
      for (const Result<uint64_t>& length : client_->Lengths(keys)) right(length, kValueBytes);
    });
    FlipEachBit(multi ? Op::kMultiPut : Op::kPut, [&] {
      const uint64_t put = next_put_++;
      Changed(keys, client_->Put(keys, put), put);
    });
    FlipEachBit(multi ? Op::kMultiPut : Op::kPut, [&] {
      const uint64_t put = next_put_++;
      Changed(keys, client_->Put(keys, put, {.overwrite = true, .durable = true}), put);
    });
    FlipEachBit(multi ? Op::kMultiRemove : Op::kRemove, [&] {
      EXPECT_TRUE(AllOk(direct_->Put(keys, next_put_)));
      for (const std::string& key : keys) holds_[key] = next_put_;
      ++next_put_;
      Changed(keys, client_->Remove(keys), 0);
    });
    EXPECT_TRUE(AllOk(direct_->Put(keys, next_put_)));
    for (const std::string& key : keys) holds_[key] = next_put_;
  }
  std::printf("%d flipped bits, %d reads answered\n", flips_, answered);
  EXPECT_GT(flips_, 10'000);
  EXPECT_GT(answered, 1000);
}

TEST_F(DamagedFramesTest, AFlippedBitOfWhatIsAskedOfAServerItselfIsSeen) {
  client_ = CallsTo(proxy_->address());
  for (const Op op : {Op::kStats, Op::kPing, Op::kPeers, Op::kView}) {
    FlipEachBit(op, [&] {
      const Result<std::string> text = client_->Ask(op);
      EXPECT_TRUE(!text.ok() || *text == *direct_->Ask(op));
    });
  }
}

TEST_F(DamagedFramesTest, AFlippedBitOfAListOfKeysIsSeen) {
  client_ = CallsTo(proxy_->address());
  int answered = 0;
  FlipEachBit(Op::kScan, [&] {
    const auto keys = client_->Scan(kNs);
    answered += keys.ok() ? 1 : 0;
    EXPECT_TRUE(!keys.ok() || *keys == *direct_->Scan(kNs));
  });
  EXPECT_FALSE(direct_->Scan(kNs)->empty());
  EXPECT_LT(answered, 10) << "the request and the answer are covered by checksums";
}

TEST_F(DamagedFramesTest, AFlippedBitOfAGreetingIsSeen) {
  for (const Way way : {Way::kToTarget, Way::kToClient}) {
    size_t bits = 1;
    for (size_t bit = 0; bit < bits; ++bit) {
      proxy_->Arm(way, Op::kHello, [&](const std::string& frame) {
        bits = frame.size() * 8;
        return WithFlippedBit(frame, bit);
      });
      const auto channel = RpcChannel::Open(proxy_->socket_address(), seconds(5));
      EXPECT_FALSE(channel.ok()) << "bit " << bit;
      EXPECT_TRUE(proxy_->Disarm());
    }
  }
}

// The answer is lost when another client has already stored something newer. Whoever repeated the
// call would bring back what it replaced.
TEST_F(DamagedFramesTest, ACallWhoseAnswerIsLostUndoesNothingNewer) {
  client_ = CallsTo(proxy_->address());
  for (const size_t count : {size_t{1}, size_t{2}}) {
    const std::vector<std::string> keys(kKeys.begin(), kKeys.begin() + static_cast<int>(count));
    const bool multi = count > 1;
    for (const bool twice : {false, true}) {
      // Of an answer that comes twice the first one is believed, and the connection ends.
      const auto check = [&](const std::vector<Status>& statuses) {
        for (const Status& status : statuses)
          EXPECT_EQ(status.code(), twice ? StatusCode::kOk : StatusCode::kAborted) << status;
      };
      const auto meanwhile = [&](Op op, const std::function<void()>& other) {
        proxy_->Arm(Way::kToClient, op, [other, twice](const std::string& answer) {
          other();
          return twice ? answer + answer : std::string();
        });
      };
      // An overwrite, and another client's.
      const uint64_t older = next_put_++;
      const uint64_t newer = next_put_++;
      meanwhile(multi ? Op::kMultiPut : Op::kPut,
                [&] { EXPECT_TRUE(AllOk(direct_->Put(keys, newer))); });
      check(client_->Put(keys, older));
      EXPECT_TRUE(proxy_->Disarm());
      for (const std::string& key : keys) EXPECT_EQ(Stored(direct_.get())[key], newer);
      // A Remove, and another client's Put.
      const uint64_t last = next_put_++;
      meanwhile(multi ? Op::kMultiRemove : Op::kRemove,
                [&] { EXPECT_TRUE(AllOk(direct_->Put(keys, last))); });
      check(client_->Remove(keys));
      for (const std::string& key : keys) EXPECT_EQ(Stored(direct_.get())[key], last);
      // A Put, and another client's Remove.
      EXPECT_TRUE(AllOk(direct_->Remove(keys)));
      meanwhile(multi ? Op::kMultiPut : Op::kPut,
                [&] { EXPECT_TRUE(AllOk(direct_->Remove(keys))); });
      check(client_->Put(keys, next_put_++, {.overwrite = false}));
      for (const std::string& key : keys) EXPECT_EQ(Stored(direct_.get())[key], 0U);
    }
  }
}

// The answer to an earlier call in front of this one's: whole, sealed and of the same connection.
TEST_F(DamagedFramesTest, AnAnswerThatComesLateIsNotTakenForThatOfTheNextCall) {
  client_ = CallsTo(proxy_->address());
  for (const size_t count : {size_t{1}, size_t{2}}) {
    const std::vector<std::string> keys(kKeys.begin(), kKeys.begin() + static_cast<int>(count));
    const bool multi = count > 1;
    std::string late;
    const auto keep = [&](Op op) {
      proxy_->Arm(Way::kToClient, op, [&](const std::string& answer) { return late = answer; });
    };
    const auto deliver = [&](Op op) {
      proxy_->Arm(Way::kToClient, op, [&](const std::string& answer) { return late + answer; });
    };
    const Op get = multi ? Op::kMultiGet : Op::kGet;
    std::vector<std::string> values;
    keep(get);
    ASSERT_TRUE(client_->Get(keys, &values)[0].ok());
    const uint64_t newer = next_put_++;
    ASSERT_TRUE(AllOk(client_->Put(keys, newer)));
    for (const std::string& key : keys) holds_[key] = newer;
    deliver(get);
    const auto lengths = client_->Get(keys, &values);
    EXPECT_TRUE(proxy_->Disarm());
    for (size_t i = 0; i < count; ++i) {
      if (lengths[i].ok()) {
        EXPECT_EQ(VerifyValue("kv", keys[i], values[i]), newer);
      }
    }
    const Op put = multi ? Op::kMultiPut : Op::kPut;
    keep(put);
    ASSERT_TRUE(AllOk(client_->Put(keys, next_put_)));
    for (const std::string& key : keys) holds_[key] = next_put_;
    ++next_put_;
    deliver(put);
    const uint64_t last = next_put_++;
    Changed(keys, client_->Put(keys, last), last);
    EXPECT_TRUE(proxy_->Disarm());
    EXPECT_EQ(Stored(direct_.get()), holds_);
  }
}

// Where a key has one value for ever a Put may be done twice.
TEST_F(DamagedFramesTest, APutOfAnImmutableNamespaceIsRepeated) {
  client_ = CallsTo(proxy_->address(), true);
  EXPECT_TRUE(AllOk(direct_->Remove(kKeys)));
  proxy_->Arm(Way::kToClient, Op::kMultiPut, [](const std::string&) { return std::string(); });
  EXPECT_TRUE(AllOk(client_->Put(kKeys, 7, {.overwrite = false})));
  EXPECT_TRUE(proxy_->Disarm());
  for (const std::string& key : kKeys) EXPECT_EQ(Stored(direct_.get())[key], 7U);
}

// Whole frames, well sealed, but of another key: a server or a proxy that mixes answers up.
TEST_F(DamagedFramesTest, AnAnswerOfAnotherKeyIsNoAnswer) {
  client_ = CallsTo(proxy_->address());
  std::string other;
  std::vector<std::string> values;
  for (const Op op : {Op::kGet, Op::kGetRange}) {
    const auto ask = [&](const std::string& key) {
      return op == Op::kGet ? client_->Get({key}, &values)[0]
                            : client_->GetRange({key}, 8, 10, &values)[0];
    };
    proxy_->Arm(Way::kToClient, op, [&](const std::string& answer) { return other = answer; });
    ASSERT_TRUE(ask("block-1").ok());
    const std::string wrong = values[0];
    proxy_->Arm(Way::kToClient, op, [&](const std::string& answer) {
      wire::FrameHeader header = HeaderOf(other);
      header.request_id = HeaderOf(answer).request_id;
      wire::Seal(&header);
      return std::string(AsText(wire::RawBytes(header))) + other.substr(wire::kHeaderBytes);
    });
    const Result<uint64_t> got = ask("block-0");
    EXPECT_TRUE(proxy_->Disarm());
    EXPECT_TRUE(got.ok()) << "asked for once more: " << got.status();
    EXPECT_NE(values[0], wrong);
  }
}

}  // namespace
}  // namespace ems::server
