// What must hold: what stands in the workers' statistics shows under the worker's name; a counter
// never goes back.
#include "pdc/daemon/loop_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::pdc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LoopMetricsTest : public ::testing::Test {
 protected:
  MetricsRegistry registry_;
  LoopMetrics metrics_{&registry_};
};

TEST_F(LoopMetricsTest, WorkersShowUnderTheirNames) {
  metrics_.ShowPrefill("prefill-0", {.tasks = 3, .cached_tokens = 40, .here = 2, .free_blocks = 7},
                       {.saved_blocks = 5});
  metrics_.ShowPrefill("prefill-1", {.tasks = 4}, {});
  metrics_.ShowDecode("decode-0", {.tasks = 9, .lost = 1, .admitted = 6, .free_blocks = 8},
                      {.failed_blocks = 2});
  const std::string text = registry_.Render();
  for (const char* line : {"ems_pdc_prefill_prompts_total{worker=\"prefill-0\"} 3\n",
                           "ems_pdc_prefill_prompts_total{worker=\"prefill-1\"} 4\n",
                           "ems_pdc_prefill_cached_tokens_total{worker=\"prefill-0\"} 40\n",
                           "ems_pdc_prefill_prompts{worker=\"prefill-0\"} 2\n",
                           "ems_pdc_prefill_free_blocks{worker=\"prefill-0\"} 7\n",
                           "ems_pdc_saved_blocks_total{worker=\"prefill-0\"} 5\n",
                           "ems_pdc_decode_requests_total{worker=\"decode-0\"} 9\n",
                           "ems_pdc_decode_lost_prefills_total{worker=\"decode-0\"} 1\n",
                           "ems_pdc_decode_admitted{worker=\"decode-0\"} 6\n",
                           "ems_pdc_decode_free_blocks{worker=\"decode-0\"} 8\n",
                           "ems_pdc_failed_saves_total{worker=\"decode-0\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(LoopMetricsTest, CountersGoOnAndNeverBackWhileGaugesFollow) {
  metrics_.ShowDecode("d", {.tokens = 10, .running = 5}, {});
  metrics_.ShowDecode("d", {.tokens = 12, .running = 1}, {});
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_pdc_decode_tokens_total{worker=\"d\"} 12\n"));
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_pdc_decode_running{worker=\"d\"} 1\n"));
  metrics_.ShowDecode("d", {.tokens = 4}, {});  // a link that went took its count along
  metrics_.ShowDecode("d", {.tokens = 13}, {});
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_pdc_decode_tokens_total{worker=\"d\"} 13\n"));
}

TEST_F(LoopMetricsTest, LinksPeersAndThePool) {
  metrics_.ShowLink("all", {.handed_over = 2,
                            .failed = 1,
                            .stalled = 1,
                            .probes = 30,
                            .round_trip = std::chrono::milliseconds(250)});
  EXPECT_THAT(registry_.Render(), Not(HasSubstr("pool_connected")));
  ClientStats pool;
  pool.checksum_mismatches = 3;
  metrics_.ShowPool(true, 3, pool);
  metrics_.ShowPeer("10.0.0.1:7600", true);
  metrics_.ShowPeer("10.0.0.2:7600", false);
  const std::string text = registry_.Render();
  for (const char* line :
       {"ems_pdc_handovers_total{link=\"all\"} 2\n",
        "ems_pdc_handovers_failed_total{link=\"all\"} 1\n",
        "ems_pdc_handovers_stalled_total{link=\"all\"} 1\n", "ems_pdc_pool_hangs_total 3\n",
        "ems_pdc_probes_total{link=\"all\"} 30\n", "ems_pdc_probe_seconds{link=\"all\"} 0.25\n",
        "ems_pdc_pool_connected 1\n", "ems_pdc_pool_checksum_mismatches_total 3\n",
        "ems_pdc_decode_peer_healthy{peer=\"10.0.0.1:7600\"} 1\n",
        "ems_pdc_decode_peer_healthy{peer=\"10.0.0.2:7600\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  metrics_.ShowPool(false, 3, pool);
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_pdc_pool_connected 0\n"));
}

}  // namespace
}  // namespace ems::pdc
