#pragma once
// What is counted of drains: a part of the controller's metrics.
#include "common/metrics.h"

namespace ems::controller {

// Threading: thread-safe.
struct DrainMetrics {
  explicit DrainMetrics(MetricsRegistry* r)
      : nodes(r->AddGauge("ems_controller_draining_nodes",
                          "Servers that are being drained: by an operator, or stopping")),
        slots(r->AddGauge("ems_controller_draining_slots",
                          "Slots that servers which are being drained still own")),
        begun(Drains(r, "begun")),
        done(Drains(r, "done")),
        timed_out(Drains(r, "timed_out")),
        given_up(Drains(r, "given_up")),
        seconds(r->AddHistogram("ems_controller_drain_seconds",
                                "From when a drain was seen until the server could be stopped",
                                {1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600})) {}

  const Gauge nodes, slots;
  const Counter begun, done, timed_out, given_up;
  const Histogram seconds;

 private:
  static Counter Drains(MetricsRegistry* r, const char* what) {
    return r->AddCounter("ems_controller_drains_total",
                         "Drains of servers: begun; done, the server can be stopped; timed_out, "
                         "likewise but others still fetch from it; given_up, cancelled or the "
                         "server is gone before it was drained",
                         {{"what", what}});
  }
};

}  // namespace ems::controller
