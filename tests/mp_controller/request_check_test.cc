#include "mp_controller/request_check.h"

#include <gtest/gtest.h>

#include <functional>

#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

v1::RegisterRequest Good() {
  v1::RegisterRequest request;
  v1::Node* node = request.mutable_node();
  node->set_name("server-1");
  node->set_boot_id(7);
  node->set_data_address("10.0.0.1:7500");
  node->set_unix_path("/run/ems.sock");
  node->set_host_id("host");
  node->set_http_address("[::1]:7501");
  node->set_capacity_bytes(1 << 30);
  return request;
}

TEST(RequestCheckTest, GoodRegistrationPasses) {
  const auto info = CheckRegister(Good());
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->name, "server-1");
  EXPECT_EQ(info->id, kNoNode);
}

TEST(RequestCheckTest, EachBadFieldIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(v1::Node*)>>> cases = {
      {"name", [](v1::Node* n) { n->set_name(""); }},
      {"name", [](v1::Node* n) { n->set_name(std::string(129, 'a')); }},
      {"name", [](v1::Node* n) { n->set_name("a b"); }},
      {"boot_id", [](v1::Node* n) { n->set_boot_id(0); }},
      {"data_address", [](v1::Node* n) { n->set_data_address(""); }},
      {"data_address", [](v1::Node* n) { n->set_data_address("host"); }},
      {"data_address", [](v1::Node* n) { n->set_data_address("host:0"); }},
      {"data_address", [](v1::Node* n) { n->set_data_address("host:65536"); }},
      {"data_address", [](v1::Node* n) { n->set_data_address("host:1x"); }},
      {"data_address", [](v1::Node* n) { n->set_data_address("::1:80"); }},
      {"data_address", [](v1::Node* n) { n->set_data_address(std::string(300, 'h') + ":1"); }},
      {"unix_path", [](v1::Node* n) { n->set_unix_path("/" + std::string(107, 'a')); }},
      {"http_address", [](v1::Node* n) { n->set_http_address("x"); }},
      {"capacity_bytes", [](v1::Node* n) { n->set_capacity_bytes(0); }},
      {"capacity_bytes", [](v1::Node* n) { n->set_capacity_bytes((uint64_t{1} << 50) + 1); }},
  };
  for (const auto& [field, spoil] : cases) {
    v1::RegisterRequest request = Good();
    spoil(request.mutable_node());
    const Status status = CheckRegister(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_NE(Message(status).find(field), std::string_view::npos) << status;
  }
  EXPECT_FALSE(CheckRegister(v1::RegisterRequest()).ok());
}

TEST(RequestCheckTest, HeartbeatVersionsAreBounded) {
  v1::HeartbeatRequest request;
  request.set_term(ViewVersion::kTermMax);
  EXPECT_TRUE(CheckHeartbeat(request).ok());
  request.set_term(ViewVersion::kTermMax + 1);
  EXPECT_FALSE(CheckHeartbeat(request).ok());
}

TEST(RequestCheckTest, NamespacesAreChecked) {
  v1::CreateNamespaceRequest request;
  request.set_name("a");
  EXPECT_TRUE(CheckNamespace(request.name(), request.policy()).ok());
  request.mutable_policy()->set_checksum(static_cast<v1::ChecksumPolicy>(17));
  EXPECT_FALSE(CheckNamespace(request.name(), request.policy()).ok());
  request.mutable_policy()->set_checksum(v1::CHECKSUM_NEVER);
  request.mutable_policy()->set_dram_quota_bytes(1);
  request.mutable_policy()->set_dram_reserved_bytes(2);
  EXPECT_FALSE(CheckNamespace(request.name(), request.policy()).ok());
  v1::UpdateNamespaceRequest update;
  update.set_name("a/b");
  EXPECT_FALSE(CheckNamespace(update.name(), update.policy()).ok());
}

}  // namespace
}  // namespace ems::controller
