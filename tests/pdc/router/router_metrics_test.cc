// What must hold: every request that is taken is waiting, running or ended, and Prometheus sees the
// same numbers.
#include "pdc/router/router_metrics.h"

#include <gtest/gtest.h>

namespace ems::pdc {
namespace {

TEST(RouterMetricsTest, FollowsARequestToItsEnd) {
  MetricsRegistry registry;
  RouterMetrics metrics(&registry, {"d0"});
  ASSERT_TRUE(metrics.TryTake(1));
  EXPECT_FALSE(metrics.TryTake(1)) << "one is waiting";
  metrics.OnAttempt();
  EXPECT_EQ(metrics.stats().waiting, 0U);
  EXPECT_EQ(metrics.stats().running, 1U);
  ASSERT_TRUE(metrics.TryTake(1));
  metrics.OnFailover(30);
  EXPECT_EQ(metrics.stats().waiting, 2U) << "who fails over is never refused";
  EXPECT_EQ(metrics.stats().recomputed_tokens, 30U);
  metrics.OnAttempt();
  metrics.OnEnded(false, StatusCode::kOk);
  metrics.OnEnded(true, StatusCode::kCancelled);
  const RequestRouterStats stats = metrics.stats();
  EXPECT_EQ(stats.requests, 2U);
  EXPECT_EQ(stats.attempts, 2U);
  EXPECT_EQ(stats.failovers, 1U);
  EXPECT_EQ(stats.finished, 1U);
  EXPECT_EQ(stats.cancelled, 1U);
  EXPECT_EQ(stats.failed, 0U);
  EXPECT_EQ(stats.waiting + stats.running, 0U);
}

TEST(RouterMetricsTest, PrometheusSeesTheSame) {
  MetricsRegistry registry;
  RouterMetrics metrics(&registry, {"d0", "d1"});
  ASSERT_TRUE(metrics.TryTake(8));
  ASSERT_TRUE(metrics.TryTake(8));
  metrics.OnAttempt();
  metrics.OnFailover(12);
  metrics.OnAttempt();
  metrics.OnEnded(true, StatusCode::kDeadlineExceeded);
  metrics.OnRefused(StatusCode::kResourceExhausted);
  metrics.OnPeer(1, true, 2, 300);
  EXPECT_EQ(metrics.stats().failed, 1U);
  EXPECT_EQ(metrics.stats().refused, 1U);
  const std::string text = registry.Render();
  for (const char* line :
       {"ems_pdc_router_requests_total 2\n",
        "ems_pdc_router_refused_total{code=\"RESOURCE_EXHAUSTED\"} 1\n",
        "ems_pdc_router_attempts_total 2\n", "ems_pdc_router_failovers_total 1\n",
        "ems_pdc_router_recomputed_tokens_total 12\n",
        "ems_pdc_router_ended_total{code=\"DEADLINE_EXCEEDED\"} 1\n", "ems_pdc_router_waiting 0\n",
        "ems_pdc_router_running 1\n", "ems_pdc_router_peer_healthy{peer=\"d0\"} 0\n",
        "ems_pdc_router_peer_healthy{peer=\"d1\"} 1\n",
        "ems_pdc_router_peer_requests{peer=\"d1\"} 2\n",
        "ems_pdc_router_peer_kv_tokens{peer=\"d1\"} 300\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
}

}  // namespace
}  // namespace ems::pdc
