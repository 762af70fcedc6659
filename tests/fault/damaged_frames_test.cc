// What must hold on a way that flips bits, drops answers or delivers them twice: what a call
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
#include "mp_sdk/internal/server_calls.h"
#include "tests/mp_server/session_fixture.h"
#include "tests/support/scripted_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/tcp_proxy.h"

namespace ems::server {
namespace {

using fabric::RpcChannel;
using internal::Batch;
using internal::BatchItem;
using internal::Router;
using internal::ServerCalls;
using std::chrono::seconds;
using testing::HeaderOf;
using testing::MakeValue;
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
  static std::optional<std::string> ReadFrame(WirePeer* peer) {
    std::optional<std::string> frame = peer->Receive(wire::kHeaderBytes);
    if (!frame) return std::nullopt;
    const wire::FrameHeader header = HeaderOf(*frame);
    const std::optional<std::string> rest = peer->Receive(header.key_bytes + header.body_bytes);
    if (!rest) return std::nullopt;
    return *frame + *rest;
  }
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

// The SDK's calls to one server. Threading: one thread.
class Caller final {
 public:
  explicit Caller(const std::string& address, NamespaceRef ns, bool immutable = false) {
    options_.transport = TransportChoice::kTcp;
    options_.connections_per_server_max = 1;
    NodeInfo node;
    node.id = NodeId(1);
    node.name = "server";
    node.boot_id = 1;
    node.data_address = address;
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(1));
    views_.Install(*DhtView::Make(ViewVersion(1, 1), {node}, slots, false));
    calls_.Bind(ns, immutable);
  }

  // Of `keys`, each with a value of that Put.
  std::vector<Status> Put(const std::vector<std::string>& keys, uint64_t put_id,
                          bool overwrite = true) {
    Batch batch = calls_.MakeBatch(Op::kPut, Soon());
    batch.flags = overwrite ? wire::kFlagOverwrite : 0;
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (const std::string& key : keys) values.push_back(ValueOf(key, put_id));
    for (size_t i = 0; i < keys.size(); ++i) {
      batch.items.push_back(calls_.MakeItem(keys[i], {}));
      batch.items.back().value = std::string_view(values[i]);
    }
    return Run(&batch);
  }
  std::vector<Status> Remove(const std::vector<std::string>& keys) {
    Batch batch = calls_.MakeBatch(Op::kRemove, Soon());
    for (const std::string& key : keys) batch.items.push_back(calls_.MakeItem(key, {}));
    return Run(&batch);
  }
  // Lengths of what came, which is in `values`.
  std::vector<Result<uint64_t>> Get(const std::vector<std::string>& keys,
                                    std::vector<std::string>* values) {
    std::vector<GetItem> items;
    values->assign(keys.size(), std::string(kValueBytes, '\0'));
    for (size_t i = 0; i < keys.size(); ++i)
      items.push_back({.key = keys[i], .into = std::as_writable_bytes(std::span((*values)[i]))});
    return calls_.Ask(std::span<const GetItem>(items), {}, Soon());
  }
  std::vector<Result<uint64_t>> GetRange(const std::vector<std::string>& keys, uint64_t offset,
                                         uint64_t bytes, std::vector<std::string>* parts) {
    std::vector<RangeItem> items;
    parts->assign(keys.size(), std::string(bytes, '\0'));
    for (size_t i = 0; i < keys.size(); ++i)
      items.push_back({.key = keys[i],
                       .offset = offset,
                       .into = std::as_writable_bytes(std::span((*parts)[i])),
                       .whole_bytes = kValueBytes});
    return calls_.Ask(std::span<const RangeItem>(items), {}, Soon());
  }
  std::vector<Result<uint64_t>> Lengths(const std::vector<std::string>& keys) {
    std::vector<KeyItem> items;
    items.reserve(keys.size());
    for (const std::string& key : keys) items.push_back({.key = key});
    return calls_.Ask(std::span<const KeyItem>(items), {}, Soon());
  }
  static std::string ValueOf(const std::string& key, uint64_t put_id) {
    return MakeValue("kv", key, put_id, kValueBytes);
  }

 private:
  static Deadline Soon() { return Deadline::After(seconds(10)); }
  std::vector<Status> Run(Batch* batch) {
    calls_.Run(batch);
    std::vector<Status> statuses;
    for (BatchItem& item : batch->items) statuses.push_back(item.status);
    return statuses;
  }

  ClientOptions options_;
  ViewCache views_;
  Router router_{options_, &views_, {}};
  ServerCalls calls_{options_, &router_};
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
    direct_ = std::make_unique<Caller>(server_->address(), kNs);
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
  static bool AllOk(const std::vector<Status>& statuses) {
    return std::ranges::all_of(statuses, [](const Status& status) { return status.ok(); });
  }
  // What the server has: by key the Put, 0 for nothing.
  std::map<std::string, uint64_t> Stored(Caller* caller) {
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
  std::unique_ptr<Caller> direct_;  // past the proxy
  std::unique_ptr<Caller> client_;
  std::map<std::string, uint64_t> holds_;  // what the server should have
  uint64_t next_put_ = 2;
  int flips_ = 0;
};

TEST_F(DamagedFramesTest, AFlippedBitIsNeverAnotherValueNorAChangeOfAnotherKey) {
  client_ = std::make_unique<Caller>(proxy_->address(), kNs);
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
    FlipEachBit(multi ? Op::kMultiGet : Op::kGet, [&] {
      std::vector<std::string> values;
      const auto lengths = client_->Get(keys, &values);
      for (size_t i = 0; i < count; ++i) {
        if (!right(lengths[i], kValueBytes)) continue;
        EXPECT_EQ(VerifyValue("kv", keys[i], values[i]), holds_[keys[i]]);
      }
    });
    FlipEachBit(multi ? Op::kMultiGetRange : Op::kGetRange, [&] {
      std::vector<std::string> parts;
      const auto lengths = client_->GetRange(keys, 8, 10, &parts);
      for (size_t i = 0; i < count; ++i) {
        if (!right(lengths[i], 10)) continue;
        EXPECT_EQ(parts[i], Caller::ValueOf(keys[i], holds_[keys[i]]).substr(8, 10));
      }
    });
    FlipEachBit(multi ? Op::kMultiExists : Op::kExists, [&] {
      for (const Result<uint64_t>& length : client_->Lengths(keys)) right(length, kValueBytes);
    });
    FlipEachBit(multi ? Op::kMultiPut : Op::kPut, [&] {
      const uint64_t put = next_put_++;
      Changed(keys, client_->Put(keys, put), put);
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
  client_ = std::make_unique<Caller>(proxy_->address(), kNs);
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
      check(client_->Put(keys, next_put_++, false));
      for (const std::string& key : keys) EXPECT_EQ(Stored(direct_.get())[key], 0U);
    }
  }
}

// Where a key has one value for ever a Put may be done twice.
TEST_F(DamagedFramesTest, APutOfAnImmutableNamespaceIsRepeated) {
  client_ = std::make_unique<Caller>(proxy_->address(), kNs, true);
  EXPECT_TRUE(AllOk(direct_->Remove(kKeys)));
  proxy_->Arm(Way::kToClient, Op::kMultiPut, [](const std::string&) { return std::string(); });
  EXPECT_TRUE(AllOk(client_->Put(kKeys, 7, false)));
  EXPECT_TRUE(proxy_->Disarm());
  for (const std::string& key : kKeys) EXPECT_EQ(Stored(direct_.get())[key], 7U);
}

// Whole frames, well sealed, but of another key: a server or a proxy that mixes answers up.
TEST_F(DamagedFramesTest, AnAnswerOfAnotherKeyIsNoAnswer) {
  client_ = std::make_unique<Caller>(proxy_->address(), kNs);
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
