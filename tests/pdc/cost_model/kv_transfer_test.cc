// What must hold: bytes over bandwidth plus latencies, and UB before VPC.
#include "pdc/cost_model/kv_transfer.h"

#include <gtest/gtest.h>

namespace ems::pdc {
namespace {

const CostConstants kConstants;

TEST(KvTransferTest, ALoadIsItsBytesAndItsReads) {
  const KvTransfer kv(kConstants);
  // 1,280 tokens, 4 copies: 40 blocks of 61 layers.
  const double bytes = 4 * 1280 * 70272.0;
  EXPECT_NEAR(kv.LoadSeconds({.tokens_per_die = 1280}, CachePlane::kUb),
              bytes / 147e9 + 40 * 61 * 1.7e-6, 1e-12);
  EXPECT_EQ(kv.LoadSeconds({}, CachePlane::kUb), 0);
  EXPECT_EQ(kv.LoadSeconds({}, CachePlane::kVpc), 0);
}

TEST(KvTransferTest, TheNodesCardIsSharedByItsDies) {
  const KvTransfer kv(kConstants);
  const KvLoad load{.tokens_per_die = 100'000, .copies = 1};
  const double ub = kv.LoadSeconds(load, CachePlane::kUb);
  const double vpc = kv.LoadSeconds(load, CachePlane::kVpc);
  EXPECT_NEAR(vpc, 100'000 * 70272.0 / (50e9 / 16), 0.1);
  EXPECT_GT(vpc, 10 * ub);
}

TEST(KvTransferTest, AHandOffIsOneRequestOverRdma) {
  EXPECT_NEAR(KvTransfer(kConstants).HandOffSeconds(4096), 5.6e-6 + 4096 * 70272.0 / 25e9, 1e-12);
}

}  // namespace
}  // namespace ems::pdc
