#pragma once
// Every metric of the controller, declared once. Labels: none.
#include "common/metrics.h"

namespace ems::controller {

// Threading: thread-safe.
struct ControllerMetrics {
  explicit ControllerMetrics(MetricsRegistry* registry);

  const Gauge nodes_live;
  const Gauge nodes_known;
  const Gauge namespaces;
  const Gauge watchers;
  const Gauge term;
  const Gauge epoch;
  const Gauge frozen;
  const Counter views_published;
  const Counter slots_moved;
  const Counter heartbeats;
  const Counter requests_refused;
  const Counter store_errors;
};

}  // namespace ems::controller
