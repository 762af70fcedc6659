// What must hold: each metric is exposed once under its name with a help text, and moves alone.
#include "mp_controller/controller_metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::controller {
namespace {

using ::testing::HasSubstr;

TEST(ControllerMetricsTest, EachMovesAlone) {
  MetricsRegistry registry;
  const ControllerMetrics metrics(&registry);
  double value = 0;
  for (const Gauge* gauge : {&metrics.namespaces, &metrics.watchers, &metrics.term, &metrics.epoch,
                             &metrics.frozen, &metrics.store_is_old, &metrics.disk_free_bytes,
                             &metrics.drains.nodes, &metrics.drains.slots}) {
    gauge->Set(++value);
  }
  for (const Counter* counter :
       {&metrics.views_published, &metrics.slots_moved, &metrics.heartbeats,
        &metrics.requests_refused, &metrics.store_errors, &metrics.strangers_refused}) {
    counter->Add(++value);
  }
  const std::string text = registry.Render();
  value = 0;
  for (const char* name :
       {"namespaces", "watchers", "term", "epoch", "view_frozen", "store_is_old", "disk_free_bytes",
        "draining_nodes", "draining_slots", "views_total", "slots_moved_total", "heartbeats_total",
        "requests_refused_total", "store_errors_total", "strangers_refused_total"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("# HELP ems_controller_{} ", name)));
    EXPECT_THAT(text, HasSubstr(fmt::format("\nems_controller_{} {}\n", name, ++value)));
  }
}

TEST(ControllerMetricsTest, NodesAreCountedByState) {
  MetricsRegistry registry;
  const ControllerMetrics metrics(&registry);
  metrics.nodes_live.Set(4);
  metrics.nodes_down.Set(3);
  metrics.nodes_stopped.Set(5);
  metrics.nodes_left.Set(2);
  metrics.nodes_ahead.Set(1);
  const std::string text = registry.Render();
  for (const char* line :
       {"{state=\"live\"} 4\n", "{state=\"down\"} 3\n", "{state=\"stopped\"} 5\n",
        "{state=\"left\"} 2\n", "{state=\"ahead\"} 1\n"})
    EXPECT_THAT(text, HasSubstr(std::string("ems_controller_nodes") + line));
}

TEST(ControllerMetricsTest, DrainsAreCountedByWhatBecameOfThem) {
  MetricsRegistry registry;
  const ControllerMetrics metrics(&registry);
  metrics.drains.begun.Add(4);
  metrics.drains.done.Add(3);
  metrics.drains.timed_out.Add(2);
  metrics.drains.given_up.Add(1);
  const std::string text = registry.Render();
  for (const char* line : {"{what=\"begun\"} 4\n", "{what=\"done\"} 3\n",
                           "{what=\"timed_out\"} 2\n", "{what=\"given_up\"} 1\n"})
    EXPECT_THAT(text, HasSubstr(std::string("ems_controller_drains_total") + line));
}

}  // namespace
}  // namespace ems::controller
