// What must hold when a bit flips in the memory of a running server: nobody is ever given the
// damaged value; the read that meets it says at once that there is none, or finds it on the SSD;
// and what is put then is stored, and read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "ems_context/context_cache.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"
#include "tests/support/process_memory.h"
#include "tests/support/raw_connection.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr size_t kBytes = 3 * kPieceBytes + 1000;

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

class DamagedMemoryTest : public ::testing::Test {
 protected:
  void Begin(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--set", "dram.bytes=64MiB", "--set", "dram.huge_pages=off"});
    auto started =
        Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = std::move(flags)});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    auto sharing = cluster_->Connect(TransportChoice::kAuto, seconds(10));
    ASSERT_TRUE(sharing.ok()) << sharing.status();
    sharing_ = *std::move(sharing);
    auto remote = cluster_->Connect(TransportChoice::kTcp, seconds(10));
    ASSERT_TRUE(remote.ok()) << remote.status();
    remote_ = *std::move(remote);
  }
  // Puts it; returns when the client that shares the server's memory sees it there.
  void PutAndShare(const std::string& key, const std::string& value,
                   const PutOptions& options = {}) {
    ASSERT_EQ(remote_->Put(key, std::string_view(value), options), OkStatus());
    ASSERT_TRUE(Eventually(
        [&] {
          const auto view = sharing_->GetView(key);
          return view.ok() && view->mapped();
        },
        seconds(20)));
  }
  static std::string Flipped(std::string value, size_t byte) {
    value[byte] = static_cast<char>(value[byte] ^ 0x10);
    return value;
  }
  void Flip(const std::string& value, size_t byte) {
    const Result<int> count =
        ProcessMemory(cluster_->server(0).pid()).Replace(value, Flipped(value, byte));
    ASSERT_TRUE(count.ok()) << count.status();
    ASSERT_GT(*count, 0);
  }
  void ExpectDamagedObjects(int count) {
    const Result<std::string> metrics =
        HttpGet(cluster_->server(0).ready().http_address, "/metrics");
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_THAT(*metrics, HasSubstr("ems_server_damaged_objects_total{namespace=\"default\"} " +
                                    std::to_string(count) + "\n"));
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> sharing_, remote_;
};

// Reads of one value: `got` is as long as what was asked for.
struct Way {
  std::string name;
  uint64_t offset, length;
  std::function<Status(Client*, const std::string& key, std::string* got)> read;
};

Status ReadRange(Client* client, const std::string& key, uint64_t offset, std::string* got) {
  return client->GetRange(key, offset, Room(got));
}

std::vector<Way> AllWays() {
  const auto multi = [](Client* client, const std::string& key, std::string* got) {
    std::string small(5, '\0');
    const std::vector<GetItem> items = {{.key = "before", .into = Room(&small)},
                                        {.key = key, .into = Room(got)},
                                        {.key = "after", .into = Room(&small)}};
    const std::vector<Result<uint64_t>> results = client->MultiGet(items);
    EXPECT_TRUE(results[0].ok() && results[2].ok()) << "the others are right";
    return results[1].status();
  };
  const auto multi_range = [](Client* client, const std::string& key, std::string* got) {
    std::string small(3, '\0');
    const std::vector<RangeItem> items = {
        {.key = "before", .offset = 1, .into = Room(&small)},
        {.key = key, .offset = kPieceBytes, .into = Room(got), .whole_bytes = kBytes}};
    const std::vector<Status> results = client->MultiGetRange(items);
    EXPECT_EQ(results[0], OkStatus());
    return results[1];
  };
  const auto view = [](Client* client, const std::string& key, std::string* got) {
    const auto object = client->GetView(key, {.verify = Verify::kAlways});
    if (object.ok()) *got = AsText(object->bytes());
    return object.status();
  };
  return {{"Get", 0, kBytes,
           [](Client* client, const std::string& key, std::string* got) {
             return client->Get(key, Room(got)).status();
           }},
          {"Get into a buffer that is too small", 0, 10,
           [](Client* client, const std::string& key, std::string* got) {
             const Status status = client->Get(key, Room(got)).status();
             if (status.code() != StatusCode::kOutOfRange) return status;
             const auto whole = client->Get(key);  // it is there, and too large
             if (whole.ok()) *got = whole->substr(0, 10);
             return whole.status();
           }},
          {"Get of a string", 0, kBytes,
           [](Client* client, const std::string& key, std::string* got) {
             auto value = client->Get(key);
             if (value.ok()) *got = *value;
             return value.status();
           }},
          {"MultiGet", 0, kBytes, multi},
          {"GetView", 0, kBytes, view},
          {"GetRange of a whole piece", kPieceBytes, kPieceBytes,
           [](Client* client, const std::string& key, std::string* got) {
             return ReadRange(client, key, kPieceBytes, got);
           }},
          {"GetRange of parts", kPieceBytes - 7, kPieceBytes,
           [](Client* client, const std::string& key, std::string* got) {
             return ReadRange(client, key, kPieceBytes - 7, got);
           }},
          {"MultiGetRange", kPieceBytes, kPieceBytes, multi_range}};
}

TEST_F(DamagedMemoryTest, IsAMissAtOnceAndHealsWithTheNextPut) {
  Begin();
  for (const char* key : {"before", "after"})
    ASSERT_EQ(remote_->Put(key, std::string_view("small")), OkStatus());
  int damaged = 0;
  for (Client* const client : {remote_.get(), sharing_.get()}) {
    for (const Way& way : AllWays()) {
      SCOPED_TRACE(way.name + (client == remote_.get() ? " over TCP" : " of shared memory"));
      const std::string key = "key " + std::to_string(++damaged);
      const std::string value = MakeValue("default", key, 1, kBytes);
      const std::string wanted = value.substr(way.offset, way.length);
      PutAndShare(key, value);
      std::string got(way.length, '\0');
      ASSERT_EQ(way.read(client, key, &got), OkStatus());
      ASSERT_TRUE(got == wanted);

      Flip(value, way.length == 10 ? 5 : kPieceBytes + 100);
      EXPECT_EQ(way.read(client, key, &got), Miss()) << "at once";
      EXPECT_EQ(remote_->Exists(key).value_or(true), false);
      EXPECT_EQ(client->Put(key, std::string_view(value)), OkStatus());
      ASSERT_EQ(way.read(client, key, &got), OkStatus());
      EXPECT_TRUE(got == wanted);
      ExpectDamagedObjects(damaged);
    }
  }
}

TEST_F(DamagedMemoryTest, WhoeverLooksAtItKeepsTheSameBytes) {
  Begin();
  const std::string value = MakeValue("default", "key", 1, kBytes);
  PutAndShare("key", value);
  const Result<ObjectView> view = sharing_->GetView("key");
  ASSERT_TRUE(view.ok() && view->mapped());
  Flip(value, 7);
  EXPECT_EQ(remote_->Get("key").status(), Miss());
  for (int i = 0; i < 600; ++i) {  // twice the pool
    const std::string other = MakeValue("default", "other", static_cast<uint64_t>(i), kBytes);
    ASSERT_EQ(remote_->Put("other " + std::to_string(i), std::string_view(other)), OkStatus());
  }
  EXPECT_TRUE(AsText(view->bytes()) == Flipped(value, 7)) << "another object's bytes";
  EXPECT_FALSE(view->Verify().ok());
}

TEST_F(DamagedMemoryTest, IsReadFromTheSsdIfThatHasIt) {
  Begin({"--set", "ssd.capacity_bytes=512MiB"});
  const std::string value = MakeValue("default", "key", 1, kBytes);
  for (Client* const client : {remote_.get(), sharing_.get()}) {
    PutAndShare("key", value, {.durability = Durability::kSsd});
    Flip(value, kBytes - 1);
    const Result<std::string> got = client->Get("key");
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == value);
  }
  ExpectDamagedObjects(2);
}

TEST_F(DamagedMemoryTest, ABlockOfAPromptIsComputedAgainAndSaved) {
  Begin();
  for (Client* const client : {remote_.get(), sharing_.get()}) {
    const std::string prompt = client == remote_.get() ? "tcp" : "shm";
    context::ClientBlockStore store(client);
    context::ContextCache cache(&store, {.timeout = seconds(10)});
    std::vector<std::string> keys, blocks, rooms;
    std::vector<ConstBuffers> values;
    std::vector<MutableBuffers> into;
    for (int i = 0; i < 5; ++i) {
      keys.push_back(prompt + std::to_string(i));
      blocks.push_back(MakeValue("default", keys.back(), 1, kBytes));
      rooms.emplace_back(kBytes, '\0');
    }
    for (int i = 0; i < 5; ++i) {
      values.emplace_back(std::string_view(blocks[static_cast<size_t>(i)]));
      into.emplace_back(Room(&rooms[static_cast<size_t>(i)]));
    }
    ASSERT_EQ(cache.Save(keys, values).stored_blocks, 5U);
    PutAndShare(keys[0], blocks[0]);
    Flip(blocks[3], 12345);
    const context::LoadResult first = cache.Load(keys, into);
    EXPECT_EQ(first.leading_blocks, 3U);
    EXPECT_EQ(first.blocks[3].status(), Miss());
    EXPECT_TRUE(first.blocks[4].ok());
    EXPECT_EQ(cache.Lookup(keys).leading_blocks, 3U);
    const context::SaveResult saved = cache.Save(keys, values);
    EXPECT_EQ(saved.stored_blocks, 1U);
    EXPECT_EQ(saved.existing_blocks, 4U);
    EXPECT_EQ(cache.Load(keys, into).leading_blocks, 5U);
    EXPECT_TRUE(rooms == blocks);
  }
  ExpectDamagedObjects(2);
}

}  // namespace
}  // namespace ems::testing
