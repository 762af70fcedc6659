#include "integrations/c/internal/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace ems::capi {
namespace {

using ::testing::HasSubstr;

void ExpectInvalid(const Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr(text));
}

// A struct as a newer header would have it.
struct NewerCallOptions {
  ems_call_options known;
  uint64_t added;
};

TEST(ArgumentsTest, InitFillsDefaultsAndClearsWhatItDoesNotKnow) {
  NewerCallOptions newer;
  std::memset(&newer, 0xff, sizeof(newer));
  ASSERT_EQ(InitOptions(&newer.known, sizeof(newer), DefaultCallOptions(), "ems_call_options"),
            OkStatus());
  EXPECT_EQ(newer.known.size, sizeof(newer));
  EXPECT_EQ(newer.known.timeout_ms, 0u);
  EXPECT_EQ(newer.added, 0u);
  EXPECT_TRUE(ToCallChoice(&newer.known).ok()) << "a newer header that asks for nothing new";
  newer.added = 1;
  ExpectInvalid(ToCallChoice(&newer.known).status(), "does not know");
}

TEST(ArgumentsTest, ASizeThatNoHeaderHadIsRefused) {
  ems_call_options options = DefaultCallOptions();
  for (const size_t size : {size_t{0}, size_t{8}, sizeof(options) - 1, size_t{4097}, SIZE_MAX}) {
    options.size = size;
    ExpectInvalid(ToCallChoice(&options).status(), "ems_call_options_init");
    ExpectInvalid(InitOptions(&options, size, DefaultCallOptions(), "ems_call_options"),
                  "ems_call_options of");
  }
  ExpectInvalid(InitOptions<ems_call_options>(nullptr, sizeof(options), options, "x"), "NULL");
}

TEST(ArgumentsTest, ClientOptionsCarryOverAndAreBounded) {
  ASSERT_TRUE(ToClientOptions(nullptr).ok());
  EXPECT_EQ(ToClientOptions(nullptr)->controller, ClientOptions().controller);
  ems_client_options c = DefaultClientOptions();
  c.controller = "host:1";
  c.name_space = "tenant";
  c.transport = EMS_TRANSPORT_TCP;
  c.async_threads = 7;
  c.op_timeout_ms = 250;
  c.shm_token = "secret";
  const Result<ClientOptions> options = ToClientOptions(&c);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->controller, "host:1");
  EXPECT_EQ(options->name_space, "tenant");
  EXPECT_EQ(options->transport, TransportChoice::kTcp);
  EXPECT_EQ(options->async_threads, 7u);
  EXPECT_EQ(options->op_timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(options->shm_token, "secret");

  const auto refuses = [](auto field, uint32_t value, const std::string& name) {
    ems_client_options bad = DefaultClientOptions();
    bad.*field = value;
    ExpectInvalid(ToClientOptions(&bad).status(), name);
  };
  refuses(&ems_client_options::transport, 3, "transport");
  refuses(&ems_client_options::connections_per_server_max, 0, "connections_per_server_max");
  refuses(&ems_client_options::async_threads, 257, "async_threads");
  refuses(&ems_client_options::async_queue_max, 0, "async_queue_max");
  refuses(&ems_client_options::connect_timeout_ms, 0, "connect_timeout_ms");
  refuses(&ems_client_options::op_timeout_ms, 30'001, "op_timeout_ms");
  refuses(&ems_client_options::start_timeout_ms, 0, "start_timeout_ms");
  refuses(&ems_client_options::reserved, 1, "reserved");
  c.controller = nullptr;
  ExpectInvalid(ToClientOptions(&c).status(), "controller is NULL");
}

TEST(ArgumentsTest, CallOptionsCarryOverAndAreBounded) {
  ems_call_options c = DefaultCallOptions();
  c.timeout_ms = 20;
  c.flags = EMS_OVERWRITE | EMS_NO_TOUCH;
  c.durability = EMS_DURABILITY_SSD;
  c.verify = EMS_VERIFY_NEVER;
  c.route_key = "prompt";
  c.route_key_size = 6;
  const Result<CallChoice> choice = ToCallChoice(&c);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->timeout(), std::chrono::milliseconds(20));
  EXPECT_TRUE(choice->put.overwrite);
  EXPECT_FALSE(choice->get.touch);
  EXPECT_EQ(choice->put.durability, Durability::kSsd);
  EXPECT_EQ(choice->get.verify, Verify::kNever);
  EXPECT_EQ(choice->put.route_key, "prompt");
  EXPECT_EQ(choice->get.route_key, "prompt");
  for (uint32_t ems_call_options::*field :
       {&ems_call_options::flags, &ems_call_options::durability, &ems_call_options::verify}) {
    ems_call_options bad = DefaultCallOptions();
    bad.*field = 4;
    EXPECT_EQ(ToCallChoice(&bad).status().code(), StatusCode::kInvalidArgument);
  }
  c.route_key = nullptr;
  ExpectInvalid(ToCallChoice(&c).status(), "route_key is NULL");
}

TEST(ArgumentsTest, KeysHaveOneTo512Bytes) {
  const std::string longest(512, 'k');
  EXPECT_EQ(*ToKey(longest.data(), 512), longest);
  ExpectInvalid(ToKey(longest.data(), 513).status(), "key of 513 bytes");
  ExpectInvalid(ToKey(longest.data(), 0).status(), "key of 0 bytes");
  ExpectInvalid(ToKey(nullptr, 3).status(), "key is NULL");
}

TEST(ArgumentsTest, PiecesNeedMemoryAndBytes) {
  std::array<char, 16> memory{};
  std::array<ems_iov, 3> iov{{{memory.data(), 4}, {nullptr, 0}, {memory.data() + 8, 8}}};
  ems_pieces pieces{.iov = iov.data(), .count = 3};
  EXPECT_EQ(*CheckPieces(&pieces, "value"), 12u);
  std::vector<ConstBytes> parts;
  AppendParts(pieces, &parts);
  EXPECT_EQ(parts.size(), 2u) << "an empty piece is no piece";

  ExpectInvalid(CheckPieces(nullptr, "value").status(), "value is NULL");
  iov[1].size = 5;
  ExpectInvalid(CheckPieces(&pieces, "value").status(), "piece 1 of value has 5 bytes at NULL");
  iov[1] = {memory.data(), SIZE_MAX};
  ExpectInvalid(CheckPieces(&pieces, "value").status(), "no memory is so large");
  iov[0].size = iov[1].size = iov[2].size = 0;
  ExpectInvalid(CheckPieces(&pieces, "value").status(), "0 bytes");
  pieces.count = 0;
  ExpectInvalid(CheckPieces(&pieces, "value").status(), "0 pieces");
  pieces.count = EMS_PIECES_MAX + 1;
  ExpectInvalid(CheckPieces(&pieces, "value").status(), "65537 pieces");
  pieces = {.iov = nullptr, .count = 1};
  ExpectInvalid(CheckPieces(&pieces, "value").status(), "at NULL");
}

}  // namespace
}  // namespace ems::capi
