#include "mp_controller/controller_metrics.h"

namespace ems::controller {

ControllerMetrics::ControllerMetrics(MetricsRegistry* r)
    : nodes_live(r->AddGauge("ems_controller_nodes_live", "Servers that hold a lease")),
      nodes_known(r->AddGauge("ems_controller_nodes_known", "Servers known by name, alive or not")),
      namespaces(r->AddGauge("ems_controller_namespaces", "Namespaces")),
      watchers(r->AddGauge("ems_controller_watchers", "Open watch streams")),
      term(r->AddGauge("ems_controller_term", "Term: one for each start of the controller")),
      epoch(r->AddGauge("ems_controller_epoch", "Epoch of the published view")),
      frozen(r->AddGauge("ems_controller_view_frozen",
                         "1 while more than half of the servers are gone and the view waits")),
      views_published(r->AddCounter("ems_controller_views_total", "Views published")),
      slots_moved(
          r->AddCounter("ems_controller_slots_moved_total", "Slots given to another server")),
      heartbeats(r->AddCounter("ems_controller_heartbeats_total", "Heartbeats accepted")),
      requests_refused(r->AddCounter("ems_controller_requests_refused_total",
                                     "Requests refused: malformed, or too many at once")),
      store_errors(
          r->AddCounter("ems_controller_store_errors_total", "Writes that the store refused")) {}

}  // namespace ems::controller
