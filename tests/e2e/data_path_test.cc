// What must hold: every operation, over TCP and over Unix sockets, through real daemons, returns
// the very bytes that were put, for sizes at all edges and for keys of any bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {
namespace {

constexpr char kNamespace[] = "default";

class DataPathTest : public ::testing::TestWithParam<TransportChoice> {
 protected:
  static void SetUpTestSuite() {
    // The suite's 64 MiB values need room beside everything else on the one server that owns them.
    Result<std::unique_ptr<Cluster>> cluster =
        Cluster::Start({.controller_flags = {}, .server_flags = {"--set", "dram.bytes=512MiB"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = std::move(*cluster);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    Result<std::unique_ptr<Client>> client = cluster_->Connect(GetParam(), std::chrono::seconds(5));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = std::move(*client);
  }

  // A key of this test and transport alone.
  static std::string Key(std::string_view name) {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::string(info->name()) + "/" + std::string(name);
  }

  static std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
};

std::unique_ptr<Cluster> DataPathTest::cluster_;

TEST_P(DataPathTest, ValuesOfAllSizesComeBackWhole) {
  // Sizes around slab classes (≤ 12.5 % apart), pieces (64 KiB), pages and segments.
  std::vector<uint64_t> sizes{0, 1, 7, 8, 63, 64, 65, 4 * kKiB, 64 * kKiB, kMiB, 64 * kMiB};
  for (uint64_t size = 128; size <= 4 * kMiB; size = size * 9 / 8) {
    sizes.insert(sizes.end(), {size - 1, size, size + 1});
  }
  sizes.insert(sizes.end(), {64 * kKiB - 1, 64 * kKiB + 1, kMiB - 1, kMiB + 1, 64 * kMiB - 1});
  for (const uint64_t size : sizes) {
    SCOPED_TRACE(size);
    const std::string key = Key(std::to_string(size));
    const std::string value = MakeValue(kNamespace, key, size, size);
    ASSERT_EQ(client_->Put(key, std::string_view(value)), OkStatus());
    const Result<std::string> got = client_->Get(key);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_TRUE(*got == value);
    EXPECT_EQ(*client_->Stat(key), size);
    ASSERT_EQ(client_->Remove(key), OkStatus());
  }
}

TEST_P(DataPathTest, AValueAboveTheServersLimitIsRefusedAndTheClientGoesOn) {
  const std::string value(64 * kMiB + 1, 'x');
  EXPECT_EQ(client_->Put(Key("large"), std::string_view(value)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(client_->Put(Key("small"), std::string_view("y")), OkStatus());
}

TEST_P(DataPathTest, KeysAreAnyBytes) {
  const std::vector<std::string> keys{Key(std::string("a\0b", 3)),
                                      Key(std::string("a\0c", 3)),
                                      Key(std::string("a\0", 2)),
                                      Key("Schlüssel ключ 鍵 🔑"),
                                      Key("../../etc/passwd"),
                                      Key("\xff\xfe\x80 invalid utf-8"),
                                      Key("ns\nkey"),
                                      std::string(512, 'k')};
  for (const std::string& key : keys) {
    const std::string value = MakeValue(kNamespace, key, 7, 1000);
    ASSERT_EQ(client_->Put(key, std::string_view(value)), OkStatus());
  }
  for (const std::string& key : keys) {
    const Result<std::string> got = client_->Get(key);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(VerifyValue(kNamespace, key, *got), 7u) << Printable(key);
  }
  EXPECT_EQ(client_->Get(Key("a")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(client_->Put(std::string(513, 'k'), std::string_view("v")).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Put("", std::string_view("v")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Remove(std::string(512, 'k')), OkStatus());
}

TEST_P(DataPathTest, SameContentIsStoredOnceAndOtherContentNeedsOverwrite) {
  const std::string key = Key("k");
  const std::string first = MakeValue(kNamespace, key, 1, 5000);
  const std::string second = MakeValue(kNamespace, key, 2, 5000);
  ASSERT_EQ(client_->Put(key, std::string_view(first)), OkStatus());
  EXPECT_EQ(client_->Put(key, std::string_view(first)), OkStatus());
  EXPECT_EQ(client_->Put(key, std::string_view(second)).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*client_->Get(key), first);
  EXPECT_EQ(client_->Put(key, std::string_view(second), {.overwrite = true}), OkStatus());
  EXPECT_EQ(*client_->Get(key), second);
}

TEST_P(DataPathTest, RemoveMakesAMiss) {
  const std::string key = Key("k");
  EXPECT_EQ(client_->Remove(key).code(), StatusCode::kNotFound);
  ASSERT_EQ(client_->Put(key, std::string_view("value")), OkStatus());
  EXPECT_EQ(*client_->Exists(key), true);
  EXPECT_EQ(client_->Remove(key), OkStatus());
  EXPECT_EQ(*client_->Exists(key), false);
  const Status miss = client_->Get(key).status();
  EXPECT_EQ(miss.code(), StatusCode::kNotFound);
  EXPECT_EQ(Message(miss), "");
}

TEST_P(DataPathTest, RangesAreThatPartOfTheValue) {
  const std::string key = Key("k");
  const uint64_t size = 300 * kKiB + 17;
  const std::string value = MakeValue(kNamespace, key, 3, size);
  ASSERT_EQ(client_->Put(key, std::string_view(value)), OkStatus());
  for (const uint64_t offset :
       {uint64_t{0}, uint64_t{1}, 64 * kKiB - 1, 64 * kKiB, 64 * kKiB + 1, size - 1, size}) {
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{100}, 64 * kKiB, 130 * kKiB}) {
      SCOPED_TRACE(::testing::Message() << offset << " + " << length);
      std::string part(length, '?');
      const Status status = client_->GetRange(key, offset, std::as_writable_bytes(std::span(part)));
      if (offset + length > size) {
        EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
      } else {
        ASSERT_EQ(status, OkStatus());
        EXPECT_TRUE(part == value.substr(offset, length));
      }
    }
  }
  std::string part(1, '?');
  EXPECT_EQ(client_->GetRange(Key("none"), 0, std::as_writable_bytes(std::span(part))).code(),
            StatusCode::kNotFound);
}

TEST_P(DataPathTest, ABufferThatIsTooSmallIsOutOfRange) {
  const std::string key = Key("k");
  ASSERT_EQ(client_->Put(key, std::string_view("0123456789")), OkStatus());
  std::string room(9, '?');
  EXPECT_EQ(client_->Get(key, std::as_writable_bytes(std::span(room))).status().code(),
            StatusCode::kOutOfRange);
  room.resize(20, '?');
  EXPECT_EQ(*client_->Get(key, std::as_writable_bytes(std::span(room))), 10u);
  EXPECT_EQ(room.substr(0, 10), "0123456789");
}

TEST_P(DataPathTest, ScatteredBuffersAreOneValue) {
  const std::string key = Key("k");
  const std::string value = MakeValue(kNamespace, key, 4, 200'000);
  const std::vector<ConstBytes> parts{AsBytes(value).first(1),
                                      AsBytes(value).subspan(1, 99'999),
                                      {},
                                      AsBytes(value).subspan(100'000)};
  ASSERT_EQ(client_->Put(key, ConstBuffers(parts)), OkStatus());
  std::string got(value.size(), '?');
  const MutableBytes bytes = std::as_writable_bytes(std::span(got));
  const std::vector<MutableBytes> rooms{bytes.first(70'000), bytes.subspan(70'000, 3),
                                        bytes.subspan(70'003)};
  EXPECT_EQ(*client_->Get(key, MutableBuffers(rooms)), value.size());
  EXPECT_TRUE(got == value);
}

TEST_P(DataPathTest, BatchesAnswerEachItemInOrder) {
  constexpr size_t kItems = 1000;
  std::vector<std::string> keys, values;
  std::vector<PutItem> puts;
  std::vector<KeyItem> names;
  for (size_t i = 0; i < kItems; ++i) {
    keys.push_back(Key(std::to_string(i)));
    values.push_back(MakeValue(kNamespace, keys[i], i, i * 7));
  }
  for (size_t i = 0; i < kItems; ++i) {
    names.push_back({.key = keys[i]});
    if (i % 3 != 0) puts.push_back({.key = keys[i], .value = std::string_view(values[i])});
  }
  for (const Status& status : client_->MultiPut(puts)) ASSERT_EQ(status, OkStatus());

  const std::vector<Result<bool>> there = client_->MultiExists(names);
  std::vector<std::string> rooms(kItems, std::string(kItems * 7, '?'));
  std::vector<GetItem> gets;
  for (size_t i = 0; i < kItems; ++i) {
    gets.push_back(
        {.key = keys[i], .into = MutableBytes(std::as_writable_bytes(std::span(rooms[i])))});
  }
  const std::vector<Result<uint64_t>> got = client_->MultiGet(gets);
  ASSERT_EQ(there.size(), kItems);
  ASSERT_EQ(got.size(), kItems);
  for (size_t i = 0; i < kItems; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(there[i].ok()) << there[i].status();
    EXPECT_EQ(*there[i], i % 3 != 0);
    if (i % 3 == 0) {
      EXPECT_EQ(got[i].status().code(), StatusCode::kNotFound);
    } else {
      ASSERT_TRUE(got[i].ok()) << got[i].status();
      EXPECT_TRUE(rooms[i].substr(0, *got[i]) == values[i]);
    }
  }
  const std::vector<Status> removed = client_->MultiRemove(names);
  for (size_t i = 0; i < kItems; ++i) {
    EXPECT_EQ(removed[i].code(), i % 3 == 0 ? StatusCode::kNotFound : StatusCode::kOk);
  }
}

TEST_P(DataPathTest, ABatchLargerThanAFrameArrivesWhole) {
  constexpr size_t kItems = 40;
  constexpr size_t kBytes = 2 * kMiB;
  std::vector<std::string> keys, values;
  std::vector<PutItem> puts;
  for (size_t i = 0; i < kItems; ++i) {
    keys.push_back(Key(std::to_string(i)));
    values.push_back(MakeValue(kNamespace, keys[i], i, kBytes));
  }
  for (size_t i = 0; i < kItems; ++i)
    puts.push_back({.key = keys[i], .value = std::string_view(values[i])});
  for (const Status& status : client_->MultiPut(puts)) ASSERT_EQ(status, OkStatus());
  std::vector<std::string> rooms(kItems, std::string(kBytes, '?'));
  std::vector<GetItem> gets;
  for (size_t i = 0; i < kItems; ++i) {
    gets.push_back(
        {.key = keys[i], .into = MutableBytes(std::as_writable_bytes(std::span(rooms[i])))});
  }
  const std::vector<Result<uint64_t>> got = client_->MultiGet(gets);
  for (size_t i = 0; i < kItems; ++i) {
    ASSERT_TRUE(got[i].ok()) << got[i].status();
    EXPECT_TRUE(rooms[i] == values[i]);
    EXPECT_EQ(client_->Remove(keys[i]), OkStatus());
  }
}

TEST_P(DataPathTest, FuturesAndCallbacksGiveTheSameAnswers) {
  const std::string key = Key("k");
  const std::string value = MakeValue(kNamespace, key, 5, 100'000);
  ASSERT_EQ(client_->PutAsync(key, std::string_view(value)).get(), OkStatus());
  std::string room(value.size(), '?');
  EXPECT_EQ(*client_->GetAsync(key, std::as_writable_bytes(std::span(room))).get(), value.size());
  EXPECT_TRUE(room == value);
  std::promise<Status> done;
  client_->PutAsync(key, std::string_view("other"), {},
                    [&done](Status status) { done.set_value(status); });
  EXPECT_EQ(done.get_future().get().code(), StatusCode::kAlreadyExists);
}

TEST_P(DataPathTest, AFullPoolEvictsTheOldest) {
  constexpr size_t kBytes = 4 * kMiB;
  constexpr size_t kItems = 500;  // 2 GB into 3 × 512 MiB
  std::string value(kBytes, '\0');
  for (size_t i = 0; i < kItems; ++i) {
    const std::string key = Key(std::to_string(i));
    FillValue(kNamespace, key, i, std::as_writable_bytes(std::span(value)));
    ASSERT_EQ(client_->Put(key, std::string_view(value)), OkStatus()) << i;
  }
  EXPECT_EQ(*client_->Exists(Key("0")), false);
  const Result<std::string> newest = client_->Get(Key(std::to_string(kItems - 1)));
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(VerifyValue(kNamespace, Key(std::to_string(kItems - 1)), *newest), kItems - 1);
}

INSTANTIATE_TEST_SUITE_P(Transports, DataPathTest,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kUnix),
                         [](const auto& param) {
                           return param.param == TransportChoice::kTcp ? "Tcp" : "Unix";
                         });

}  // namespace
}  // namespace ems::testing
