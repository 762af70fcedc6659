#include "cluster/namespace_codec.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems {
namespace {

NamespaceInfo Info(uint32_t id, const std::string& name) {
  return {.ref = {NamespaceId(id), 3},
          .name = name,
          .dram_quota_bytes = 10,
          .dram_reserved_bytes = 5,
          .ssd_quota_bytes = 7,
          .ssd_reserved_bytes = 1,
          .durability = Durability::kSsd,
          .checksum = ChecksumPolicy::kSampled};
}

TEST(NamespaceCodecTest, TableSurvivesTheWire) {
  NamespaceTable table;
  table.version = 4;
  table.by_id = {{NamespaceId(1), Info(1, "a")}, {NamespaceId(9), Info(9, "b")}};
  v1::NamespaceTable proto;
  ToProto(table, &proto);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ((*back)->by_id, table.by_id);
  EXPECT_EQ((*back)->version, 4u);
}

TEST(NamespaceCodecTest, BadTablesAreRefused) {
  v1::NamespaceTable proto;
  ToProto(Info(1, "a"), proto.add_namespaces());
  ToProto(Info(1, "b"), proto.add_namespaces());
  EXPECT_EQ(FromProto(proto).status().code(), StatusCode::kInvalidArgument);
  proto.mutable_namespaces(1)->set_id(2);
  EXPECT_TRUE(FromProto(proto).ok());
  proto.mutable_namespaces(1)->set_name("a");
  EXPECT_EQ(FromProto(proto).status().code(), StatusCode::kInvalidArgument);
  proto.mutable_namespaces(1)->set_name("b");
  proto.mutable_namespaces(1)->mutable_policy()->set_durability(static_cast<v1::Durability>(9));
  EXPECT_EQ(FromProto(proto).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems
