// What must hold: a client on a server's host reads without it, writes from its own memory, and
// sees the same as one that goes over a socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/thread_pool.h"
#include "mp_sdk/client.h"
#include "tests/support/cluster.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"

namespace ems {
namespace {

using testing::Cluster;
using testing::Eventually;
using testing::MakeValue;

std::string Name(int i) { return "key-" + std::to_string(i); }

struct OneSidedTest : ::testing::Test {
  static void SetUpTestSuite() {
    Cluster::Options options;
    options.servers = 1;
    options.controller_flags = {"--set", "damping_ms=0"};  // one test starts the server again
    auto started = Cluster::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    cluster = *std::move(started);
  }
  static void TearDownTestSuite() { cluster.reset(); }
  void SetUp() override {
    auto connected = cluster->Connect();
    ASSERT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    auto remote = cluster->Connect(TransportChoice::kTcp);
    ASSERT_TRUE(remote.ok()) << remote.status();
    other = *std::move(remote);
  }
  // Reads until everything that a read of `key` needs is mapped.
  void WarmUp(std::string_view key) {
    ASSERT_TRUE(Eventually([&] {
      const uint64_t before = client->stats().one_sided;
      EXPECT_TRUE(client->Get(key).ok());
      return client->stats().one_sided > before;
    })) << client->stats().not_attached
        << " not attached, " << client->stats().not_current << " not current, "
        << client->stats().not_conclusive << " not conclusive";
  }
  nlohmann::json Stats() {
    const auto text = other->ServerStats(Cluster::ServerName(0), std::chrono::seconds(5));
    EXPECT_TRUE(text.ok()) << text.status();
    return nlohmann::json::parse(text.value_or("{}"));
  }
  // How many of the keys of `work` were settled without the server.
  template <typename Work>
  uint64_t OneSided(Work work) {
    const uint64_t before = client->stats().one_sided;
    work();
    return client->stats().one_sided - before;
  }

  static std::unique_ptr<Cluster> cluster;
  std::unique_ptr<Client> client;  // on the server's host
  std::unique_ptr<Client> other;   // over TCP
};
std::unique_ptr<Cluster> OneSidedTest::cluster;

TEST_F(OneSidedTest, ReadsWhatAnotherClientWrote) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{65537}, size_t{3'000'000}}) {
    const std::string key = "size" + std::to_string(bytes);
    const std::string value = MakeValue("ns", key, 1, bytes);
    ASSERT_TRUE(other->Put(key, std::string_view(value)).ok());
    WarmUp(key);
    std::string room(bytes + 10, '\0');
    EXPECT_EQ(OneSided([&] {
                const auto length = client->Get(key, std::as_writable_bytes(std::span(room)));
                ASSERT_TRUE(length.ok()) << length.status();
                EXPECT_EQ(room.substr(0, *length), value);
                EXPECT_EQ(*client->Stat(key), bytes);
                EXPECT_TRUE(*client->Exists(key));
              }),
              3U);
    std::string part(bytes / 2, '\0');
    EXPECT_EQ(OneSided([&] {
                EXPECT_TRUE(
                    client->GetRange(key, bytes / 3, std::as_writable_bytes(std::span(part))).ok());
              }),
              1U);
    EXPECT_EQ(part, value.substr(bytes / 3, bytes / 2));
    std::string small(bytes - 1, '\0');
    EXPECT_EQ(client->Get(key, std::as_writable_bytes(std::span(small))).status().code(),
              StatusCode::kOutOfRange);
    EXPECT_EQ(client->GetRange(key, bytes, std::as_writable_bytes(std::span(room))).code(),
              StatusCode::kOutOfRange);
  }
}

// As a container that shares the folder of the socket, and has a host name of its own.
TEST_F(OneSidedTest, AClientOnAHostOfAnotherNameReadsTheSameMemory) {
  bool renamed = false;
  Thread container("container", [&] {
    constexpr std::string_view kName = "engine-0";
    renamed = (::unshare(CLONE_NEWUTS) == 0) && ::sethostname(kName.data(), kName.size()) == 0;
    if (!renamed) return;
    auto connected = cluster->Connect();
    ASSERT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
  });
  container.Join();
  if (!renamed) GTEST_SKIP() << "a process may make no namespace here";
  ASSERT_TRUE(other->Put("renamed", std::string_view("value")).ok());
  WarmUp("renamed");
  EXPECT_EQ(*client->Get("renamed"), "value");
}

TEST_F(OneSidedTest, ManyRangesOfValuesOfAKnownLength) {
  constexpr uint64_t kBytes = 300'000;
  std::vector<std::string> keys, values;
  for (int i = 0; i < 8; ++i) {
    keys.push_back("ranges" + std::to_string(i));
    values.push_back(MakeValue("ns", keys.back(), 1, kBytes));
    ASSERT_TRUE(other->Put(keys.back(), std::string_view(values.back())).ok());
    WarmUp(keys.back());
  }
  keys.push_back("ranges, absent");
  for (Client* reader : {client.get(), other.get()}) {
    std::vector<std::string> rooms(keys.size() + 1, std::string(100'000, '?'));
    std::vector<RangeItem> items;
    for (size_t i = 0; i < keys.size(); ++i)
      items.push_back({.key = keys[i],
                       .offset = i * 25'001,
                       .into = std::as_writable_bytes(std::span(rooms[i])),
                       .whole_bytes = kBytes});
    items[2].whole_bytes = kBytes + 1;
    items.push_back({.key = keys[0],  // another part of the first
                     .offset = 200'000,
                     .into = std::as_writable_bytes(std::span(rooms.back()))});
    const std::vector<Status> results = reader->MultiGetRange(items);
    ASSERT_EQ(results.size(), items.size());
    for (size_t i = 0; i < 8; ++i) {
      if (i == 2) continue;
      ASSERT_TRUE(results[i].ok()) << results[i];
      EXPECT_EQ(rooms[i], values[i].substr(i * 25'001, 100'000));
    }
    EXPECT_EQ(results[2].code(), StatusCode::kOutOfRange);
    EXPECT_EQ(results[8].code(), StatusCode::kNotFound);
    ASSERT_TRUE(results[9].ok()) << results[9];
    EXPECT_EQ(rooms[9], values[0].substr(200'000));
  }
  EXPECT_TRUE(client->MultiGetRange({}).empty());
}

TEST_F(OneSidedTest, SeesItsOwnAndOthersWritesAtOnce) {
  ASSERT_TRUE(client->Put("seen", std::string_view("0")).ok());
  WarmUp("seen");
  for (int i = 1; i < 300; ++i) {
    const std::string value = std::to_string(i);
    Client& writer = i % 2 == 0 ? *client : *other;
    ASSERT_TRUE(writer.Put("seen", std::string_view(value), {.overwrite = true}).ok());
    EXPECT_EQ(*client->Get("seen"), value);
  }
  ASSERT_TRUE(other->Remove("seen").ok());
  EXPECT_EQ(client->Get("seen").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(*client->Exists("seen"));
}

TEST_F(OneSidedTest, AMissIsSettledWithoutTheServer) {
  ASSERT_TRUE(client->Put("there", std::string_view("x")).ok());
  WarmUp("there");
  EXPECT_EQ(OneSided([&] {
              EXPECT_EQ(client->Get("never written").status().code(), StatusCode::kNotFound);
              EXPECT_FALSE(*client->Exists("never written"));
            }),
            2U);
}

TEST_F(OneSidedTest, ViewsLieInTheServersMemory) {
  const std::string value = MakeValue("ns", "viewed", 1, 500'000);
  ASSERT_TRUE(client->Put("viewed", std::string_view(value)).ok());
  WarmUp("viewed");
  Result<ObjectView> view = client->GetView("viewed");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(view->mapped());
  EXPECT_TRUE(view->Verify().ok());
  EXPECT_EQ(view->checksum(), Checksum(AsBytes(value)));
  // The object stays in place while it is replaced and the memory is asked for by others.
  ASSERT_TRUE(other->Put("viewed", std::string_view("new"), {.overwrite = true}).ok());
  for (int i = 0; i < 400; ++i) {
    const std::string filler = MakeValue("ns", Name(i), 7, 500'000);
    ASSERT_TRUE(other->Put(Name(i), std::string_view(filler), {.overwrite = true}).ok());
  }
  EXPECT_EQ(AsText(view->bytes()), value);
  EXPECT_EQ(*client->Get("viewed"), "new");
  EXPECT_EQ(client->GetView("no such").status().code(), StatusCode::kNotFound);
}

TEST_F(OneSidedTest, AViewOverASocketIsACopy) {
  for (const size_t bytes : {size_t{5}, size_t{100'000}}) {
    const std::string value = MakeValue("ns", "copied", 1, bytes);
    ASSERT_TRUE(other->Put("copied", std::string_view(value), {.overwrite = true}).ok());
    Result<ObjectView> view = other->GetView("copied");
    ASSERT_TRUE(view.ok()) << view.status();
    const ObjectView moved = *std::move(view);
    EXPECT_FALSE(moved.mapped());
    EXPECT_EQ(AsText(moved.bytes()), value);
    EXPECT_TRUE(moved.Verify().ok());
  }
}

TEST_F(OneSidedTest, BatchesMixHitsAndMisses) {
  std::vector<std::string> names, values;
  std::vector<PutItem> puts;
  for (int i = 0; i < 300; ++i) {
    names.push_back("batch-" + std::to_string(i));
    values.push_back(MakeValue("ns", names.back(), 1, 100 + static_cast<size_t>(i) * 40));
  }
  for (size_t i = 0; i < names.size(); i += 2) {
    puts.push_back({.key = names[i], .value = std::string_view(values[i])});
  }
  for (const Status& status : client->MultiPut(puts)) EXPECT_TRUE(status.ok()) << status;
  WarmUp(names[0]);
  std::vector<KeyItem> keys;
  std::vector<GetItem> gets;
  std::vector<std::string> rooms(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    rooms[i].resize(values[i].size());
    keys.push_back({.key = names[i]});
    gets.push_back({.key = names[i], .into = std::as_writable_bytes(std::span(rooms[i]))});
  }
  (void)client->MultiExists(keys);  // has all segments asked for
  ASSERT_TRUE(Eventually(
      [&] { return OneSided([&] { (void)client->MultiExists(keys); }) == keys.size(); }));
  const auto there = client->MultiExists(keys);
  const auto got = client->MultiGet(gets);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(*there[i], i % 2 == 0);
    EXPECT_EQ(got[i].ok(), i % 2 == 0);
    EXPECT_TRUE(i % 2 != 0 || rooms[i] == values[i]) << i;
  }
}

TEST_F(OneSidedTest, TwentyClientsOfAHostPutFromTheirMemory) {
  constexpr uint64_t kClients = 20;
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t i = 0; i < kClients; ++i) {
    auto connected = cluster->Connect();
    ASSERT_TRUE(connected.ok()) << connected.status();
    clients.push_back(*std::move(connected));
  }
  for (uint64_t i = 0; i < kClients; ++i) {
    const std::string key = "of-client-" + std::to_string(i);
    const std::string value = MakeValue("ns", key, 1, 100'000);
    const auto registered = [&] { return Stats()["shm_registered_bytes"].get<uint64_t>(); };
    const uint64_t before = registered();
    ASSERT_TRUE(Eventually([&] {  // the first has the memory made that the others lie in
      EXPECT_TRUE(clients[i]->Put(key, std::string_view(value)).ok());
      return registered() > before;
    })) << i;
    EXPECT_LE(registered() - before, 32 * kMiB) << "a client that needs little takes little";
    ASSERT_TRUE(clients[i]->Put(key + "-staged", std::string_view(value)).ok());
    EXPECT_EQ(*other->Get(key + "-staged"), value);
  }
}

TEST_F(OneSidedTest, ValuesInStagingMemoryArePutFromThere) {
  Result<StagingBuffer> buffer = client->AllocateBuffer(200'000);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const std::string value = MakeValue("ns", "staged", 1, 200'000);
  std::ranges::copy(AsBytes(value), buffer->bytes().begin());
  ASSERT_TRUE(client->Put("first", std::string_view("attaches")).ok());
  WarmUp("first");
  // The server maps the memory, or nothing below would be put from there.
  EXPECT_TRUE(Eventually([&] { return Stats()["shm_registered_bytes"].get<uint64_t>() > 0; }));
  for (int i = 0; i < 50; ++i) {
    const std::string key = "staged" + std::to_string(i);
    ASSERT_TRUE(client->Put(key, ConstBytes(buffer->bytes())).ok());
    EXPECT_EQ(*other->Get(key), value);
  }
  // Staged, ordinary and scattered values in one batch.
  std::vector<std::string> names;
  std::vector<PutItem> items;
  const ConstBytes bytes = buffer->bytes();
  const std::vector<ConstBytes> parts = {bytes.first(10), bytes.subspan(10, 90)};
  names.reserve(30);
  for (int i = 0; i < 30; ++i) names.push_back("mixed" + std::to_string(i));
  for (size_t i = 0; i < names.size(); ++i) {
    items.push_back({.key = names[i], .value = ConstBuffers(bytes.first(100))});
    if (i % 3 == 1) items.back().value = std::string_view(value).substr(0, 100);
    if (i % 3 == 2) items.back().value = ConstBuffers(std::span(parts));
  }
  for (const Status& status : client->MultiPut(items)) EXPECT_TRUE(status.ok()) << status;
  for (const std::string& key : names) EXPECT_EQ(*other->Get(key), value.substr(0, 100));
  EXPECT_EQ(client->Put("staged0", ConstBytes(bytes.first(5))).code(), StatusCode::kAlreadyExists);
}

// The memory is mapped behind a Put, and not for the first read, which would go over the socket.
TEST_F(OneSidedTest, ALargeValueOfItsOwnIsReadOneSidedFromTheFirstTimeOn) {
  ASSERT_TRUE(client->Put("own, first", std::string_view("attaches")).ok());
  WarmUp("own, first");
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    int segments = 0;
    for (std::string line; std::getline(maps, line);)
      segments += line.find("ems-segment") != std::string::npos ? 1 : 0;
    return segments;
  };
  const int before = mapped();
  // Two of nearly a segment each: one at most fits into what is mapped.
  const std::string value = MakeValue("ns", "own", 1, 30 * kMiB);
  for (const char* key : {"own0", "own1"})
    ASSERT_TRUE(client->Put(key, std::string_view(value)).ok()) << key;
  ASSERT_TRUE(Eventually([&] { return mapped() > before; })) << "nobody has read it yet";
  EXPECT_GE(OneSided([&] {
              for (const char* key : {"own0", "own1"}) {
                const Result<std::string> copy = client->Get(key);
                ASSERT_TRUE(copy.ok()) << copy.status();
                EXPECT_EQ(*copy == value, true);
              }
            }),
            1U);
}

// A table for 65,536 objects has to be replaced by a larger one meanwhile.
TEST_F(OneSidedTest, TheIndexGrowsUnderAReader) {
  constexpr int kSteady = 500, kBatch = 1000, kBatches = 40;
  std::vector<std::string> steady;
  std::vector<KeyItem> keys;
  steady.reserve(kSteady);
  keys.reserve(kSteady);
  for (int i = 0; i < kSteady; ++i) {
    steady.push_back("steady-" + std::to_string(i));
    ASSERT_TRUE(client->Put(steady.back(), std::string_view(steady.back())).ok());
  }
  for (const std::string& key : steady) keys.push_back({.key = key});
  WarmUp(steady[0]);
  const uint64_t table_bytes = Stats()["namespaces"][0]["shared_index_bytes"];
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0}, missed{0};
  Thread reader("reader", [&] {
    while (!stop.load()) {
      for (const Result<bool>& there : client->MultiExists(keys))
        missed += there.ok() && *there ? 0 : 1;
      const Result<std::string> value = client->Get(steady[static_cast<size_t>(rounds % kSteady)]);
      missed += value.ok() && *value == steady[static_cast<size_t>(rounds % kSteady)] ? 0 : 1;
      ++rounds;
    }
  });
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<std::string> names;
    std::vector<PutItem> items;
    names.reserve(kBatch);
    items.reserve(kBatch);
    for (int i = 0; i < kBatch; ++i) names.push_back(fmt::format("grow-{}-{}", batch, i));
    for (const std::string& name : names)
      items.push_back({.key = name, .value = std::string_view("x")});
    for (const Status& put : other->MultiPut(items)) ASSERT_TRUE(put.ok()) << put;
  }
  EXPECT_TRUE(Eventually(
      [&] { return Stats()["namespaces"][0]["shared_index_bytes"] >= 2 * table_bytes; }));
  const int before = rounds;
  EXPECT_TRUE(Eventually([&] { return rounds > before + 10; }));
  stop.store(true);
  reader.Join();
  EXPECT_EQ(missed, 0) << "of " << rounds << " rounds";
  ASSERT_TRUE(
      Eventually([&] { return OneSided([&] { (void)client->MultiExists(keys); }) == kSteady; }));
}

TEST_F(OneSidedTest, AServerThatEndsAndReturnsIsReadAgain) {
  ASSERT_TRUE(client->Put("again", std::string_view("1")).ok());
  WarmUp("again");
  Result<ObjectView> view = client->GetView("again");
  ASSERT_TRUE(view.ok()) << view.status();
  ASSERT_TRUE(cluster->RestartServer(0).ok());
  EXPECT_EQ(AsText(view->bytes()), "1");
  ASSERT_TRUE(Eventually(
      [&] { return client->Put("again", std::string_view("2"), {.overwrite = true}).ok(); },
      std::chrono::seconds(20)));
  WarmUp("again");
  EXPECT_EQ(*client->Get("again"), "2");
}

}  // namespace
}  // namespace ems
