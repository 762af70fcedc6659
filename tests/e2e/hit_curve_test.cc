// What must hold: what is estimated for the memory there is, is what is measured; what is estimated
// for twice that is what twice that brings; however clients read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cluster/controller_client.h"
#include "tests/support/cluster.h"
#include "tests/support/eventually.h"

namespace ems::testing {
namespace {

constexpr size_t kKeys = 20'000;
constexpr int kGets = 40'000;
constexpr uint64_t kQuota = 4 * kMiB;  // of 40 MiB of values
constexpr uint64_t kValueBytes = 2 * kKiB;
constexpr double kNear = 0.05;

// Popularity falls as rank^-0.9.
std::vector<std::string> Asked() {
  std::vector<double> sums(kKeys);
  double sum = 0;
  for (size_t i = 0; i < kKeys; ++i) sums[i] = sum += std::pow(static_cast<double>(i + 1), -0.9);
  std::mt19937_64 random(11);
  std::vector<std::string> keys;
  for (int i = 0; i < kGets; ++i) {
    const double at = std::uniform_real_distribution<double>(0, sum)(random);
    keys.push_back("k" + std::to_string(std::ranges::lower_bound(sums, at) - sums.begin()));
  }
  return keys;
}

struct HitCurveE2eTest : ::testing::TestWithParam<TransportChoice> {
  // A namespace of its own, in which each value that is missed is stored. The share of hits.
  double Measure(const std::string& name, uint64_t quota_bytes) {
    NamespaceInfo wanted;
    wanted.name = name;
    wanted.dram_quota_bytes = quota_bytes;
    ControllerClient controller(cluster->controller_address(), "test");
    const auto made = controller.CreateNamespace(wanted, Deadline::After(std::chrono::seconds(5)));
    EXPECT_TRUE(made.ok()) << made.status();
    ClientOptions options;
    options.controller = cluster->controller_address();
    options.name_space = name;
    options.transport = GetParam();
    const auto client = Client::Connect(options);
    if (!client.ok()) {
      ADD_FAILURE() << client.status();
      return 0;
    }
    const std::string value(kValueBytes, 'v');
    int hits = 0;
    for (const std::string& key : Asked()) {
      const bool hit = (*client)->Get(key).ok();
      hits += hit ? 1 : 0;
      if (hit) continue;
      EXPECT_EQ((*client)->Put(key, std::string_view(value)), OkStatus());
    }
    const bool one_sided = GetParam() == TransportChoice::kAuto;
    EXPECT_EQ((*client)->stats().one_sided > uint64_t{kGets} / 2, one_sided);
    return static_cast<double>(hits) / kGets;
  }

  std::unique_ptr<Cluster> cluster;
};

TEST_P(HitCurveE2eTest, EstimatesAreWhatIsMeasuredWithThatMemory) {
  auto started = Cluster::Start({.servers = 1, .controller_flags = {}, .server_flags = {}});
  ASSERT_TRUE(started.ok()) << started.status();
  cluster = *std::move(started);
  const double once = Measure("once", kQuota), twice = Measure("twice", 2 * kQuota);
  ControllerClient controller(cluster->controller_address(), "test");
  HitCurve curve;
  EXPECT_TRUE(Eventually([&] {  // with a heartbeat
    const auto told = controller.GetHitCurve("once", Deadline::After(std::chrono::seconds(5)));
    if (told.ok() && told->has_value()) curve = **told;
    return curve.lookups >= kGets;
  })) << curve.lookups;
  EXPECT_EQ(curve.lookups, uint64_t{kGets});
  EXPECT_NEAR(curve.hit_rate(), once, 0.001);
  EXPECT_EQ(curve.memory_bytes, kQuota);
  ASSERT_TRUE(curve.enough) << curve.samples;
  EXPECT_NEAR(curve.estimates[2], once, kNear);
  EXPECT_NEAR(curve.estimates[3], twice, kNear);
  EXPECT_GT(twice, once + kNear) << "there is something to tell";
  EXPECT_EQ(
      controller.GetHitCurve("none", Deadline::After(std::chrono::seconds(5))).status().code(),
      StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(Transports, HitCurveE2eTest,
                         ::testing::Values(TransportChoice::kAuto, TransportChoice::kTcp));

}  // namespace
}  // namespace ems::testing
