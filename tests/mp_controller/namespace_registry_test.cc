#include "mp_controller/namespace_registry.h"

#include <gtest/gtest.h>

namespace ems::controller {
namespace {

NamespaceInfo Named(const std::string& name) {
  NamespaceInfo info;
  info.name = name;
  return info;
}

NamespaceInfo Create(NamespaceRegistry* registry, const std::string& name) {
  const auto change = registry->PlanCreate(Named(name));
  EXPECT_TRUE(change.ok()) << change.status();
  registry->Apply(*change);
  return change->info;
}

TEST(NamespaceRegistryTest, NamesAreChecked) {
  EXPECT_TRUE(CheckNamespaceName("aZ0._-").ok());
  EXPECT_TRUE(CheckNamespaceName(std::string(128, 'a')).ok());
  for (const std::string& bad : {std::string(), std::string(129, 'a'), std::string("a/b"),
                                 std::string("a\0b", 3), std::string("é"), std::string("a b")}) {
    EXPECT_EQ(CheckNamespaceName(bad).code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(NamespaceRegistryTest, PoliciesAreChecked) {
  NamespaceInfo info = Named("a");
  info.dram_reserved_bytes = 5;
  EXPECT_TRUE(CheckNamespacePolicy(info).ok());  // no quota: any reservation
  info.dram_quota_bytes = 4;
  EXPECT_FALSE(CheckNamespacePolicy(info).ok());
  info.dram_quota_bytes = 5;
  EXPECT_TRUE(CheckNamespacePolicy(info).ok());
  info.ssd_quota_bytes = 1, info.ssd_reserved_bytes = 2;
  EXPECT_FALSE(CheckNamespacePolicy(info).ok());
  info.ssd_quota_bytes = ~uint64_t{0};
  EXPECT_FALSE(CheckNamespacePolicy(info).ok());
}

TEST(NamespaceRegistryTest, IdsAreNeverUsedAgain) {
  NamespaceRegistry registry;
  const auto first = Create(&registry, "a");
  EXPECT_NE(first.ref.generation, 0u);
  EXPECT_EQ(registry.PlanCreate(Named("a")).status().code(), StatusCode::kAlreadyExists);
  registry.Apply(*registry.PlanDelete("a"));
  EXPECT_EQ(registry.Get("a").status().code(), StatusCode::kNotFound);
  const auto second = Create(&registry, "a");
  EXPECT_GT(second.ref.id, first.ref.id);
  NamespaceRegistry restored({second}, 3, 2);
  EXPECT_GT(Create(&restored, "b").ref.id, second.ref.id) << "even if the counter were too low";
}

TEST(NamespaceRegistryTest, NumbersThatAnotherCopyMayHaveGivenAreSkipped) {
  NamespaceRegistry registry;
  const auto before = Create(&registry, "a");
  const uint64_t version = registry.Snapshot()->version;
  registry.Apply(registry.PlanSkip());
  EXPECT_EQ(registry.Snapshot()->version, version + kNumbersSkipped);
  EXPECT_EQ(registry.Get("a")->ref, before.ref);
  EXPECT_EQ(registry.size(), 1U);
  EXPECT_EQ(Create(&registry, "b").ref.id.value(), before.ref.id.value() + 1 + kNumbersSkipped);
  NamespaceRegistry full({}, 3, UINT32_MAX - 1);
  full.Apply(full.PlanSkip());
  EXPECT_EQ(full.PlanCreate(Named("a")).status().code(), StatusCode::kResourceExhausted);
}

// A namespace that an older copy of the store makes is another one than that which had its id.
TEST(NamespaceRegistryTest, TwoCopiesOfOneStoreMakeDifferentNamespaces) {
  NamespaceRegistry one, other;
  const auto lost = Create(&one, "x"), made = Create(&other, "y");
  EXPECT_EQ(lost.ref.id, made.ref.id);
  EXPECT_NE(lost.ref, made.ref);
  EXPECT_EQ(one.version(), other.version());
  EXPECT_FALSE(other.Knows(one.version(), one.Snapshot()->Fingerprint()));
}

TEST(NamespaceRegistryTest, TablesThatItCannotHaveMadeAreTold) {
  NamespaceRegistry registry({}, 7, 3);
  EXPECT_TRUE(registry.Knows(0, 0)) << "none";
  EXPECT_TRUE(registry.Knows(6, 99)) << "of an earlier life";
  EXPECT_TRUE(registry.Knows(7, registry.Snapshot()->Fingerprint()));
  EXPECT_FALSE(registry.Knows(7, 99));
  EXPECT_FALSE(registry.Knows(8, 0));
  const auto before = registry.Snapshot();
  (void)Create(&registry, "a");
  EXPECT_TRUE(registry.Knows(7, before->Fingerprint())) << "it has not heard of the newest";
  EXPECT_TRUE(registry.Knows(8, registry.Snapshot()->Fingerprint()));
  EXPECT_FALSE(registry.Knows(8, before->Fingerprint()));
  registry.Apply(registry.PlanSkip());
  EXPECT_TRUE(registry.Knows(9, 0)) << "skipped, so what another copy has made is accepted";
  EXPECT_TRUE(registry.Knows(registry.version(), 0));
}

TEST(NamespaceRegistryTest, UpdateKeepsIdAndGenerationAndVersionGrows) {
  NamespaceRegistry registry;
  const auto made = Create(&registry, "a");
  const uint64_t version = registry.Snapshot()->version;
  NamespaceInfo wanted = Named("a");
  wanted.dram_quota_bytes = 9;
  const auto change = registry.PlanUpdate(wanted);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(registry.Get("a")->dram_quota_bytes, 0u) << "a plan changes nothing";
  registry.Apply(*change);
  EXPECT_EQ(registry.Get("a")->dram_quota_bytes, 9u);
  EXPECT_EQ(registry.Get("a")->ref, made.ref);
  EXPECT_GT(registry.Snapshot()->version, version);
  EXPECT_EQ(registry.PlanUpdate(Named("b")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(registry.PlanDelete("b").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::controller
