#pragma once
// Every metric of the controller, declared once. Labels: the state of a node.
#include "common/metrics.h"
#include "mp_controller/events/drain_metrics.h"

namespace ems::controller {

// Threading: thread-safe.
struct ControllerMetrics {
  explicit ControllerMetrics(MetricsRegistry* r)
      : nodes_live(Nodes(r, "live")),
        nodes_down(Nodes(r, "down")),
        nodes_stopped(Nodes(r, "stopped")),
        nodes_left(Nodes(r, "left")),
        nodes_ahead(Nodes(r, "ahead")),
        namespaces(r->AddGauge("ems_controller_namespaces", "Namespaces")),
        watchers(r->AddGauge("ems_controller_watchers", "Open watch streams")),
        term(r->AddGauge("ems_controller_term", "Term: one for each start of the controller")),
        epoch(r->AddGauge("ems_controller_epoch", "Epoch of the published view")),
        frozen(r->AddGauge("ems_controller_view_frozen",
                           "1 while more than half of the servers are gone and the view waits")),
        store_is_old(r->AddGauge("ems_controller_store_is_old",
                                 "1 while no server gets a lease because servers have later views "
                                 "than the store")),
        disk_free_bytes(r->AddGauge("ems_controller_disk_free_bytes",
                                    "What is free of the file system of data_dir")),
        views_published(r->AddCounter("ems_controller_views_total", "Views published")),
        slots_moved(
            r->AddCounter("ems_controller_slots_moved_total", "Slots given to another server")),
        heartbeats(r->AddCounter("ems_controller_heartbeats_total", "Heartbeats accepted")),
        requests_refused(
            r->AddCounter("ems_controller_requests_refused_total",
                          "Requests refused: malformed, or too many at the same time")),
        store_errors(
            r->AddCounter("ems_controller_store_errors_total", "Writes that the store refused")),
        strangers_refused(r->AddCounter("ems_controller_strangers_refused_total",
                                        "Calls of servers of another cluster")),
        drains(r),
        leader(r->AddGauge("ems_controller_leader",
                           "1 while this controller leads; of several, one does")),
        elections(r->AddCounter("ems_controller_elections_total",
                                "How often this controller was elected, of several")),
        etcd_errors(r->AddCounter("ems_controller_etcd_errors_total",
                                  "Calls of the election that etcd has not answered, or refused")),
        etcd_write_seconds(r->AddHistogram(
            "ems_controller_etcd_write_seconds", "How long etcd takes for a write of the leader",
            {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5})) {}

  // What a leader knows, and a follower does not.
  void OnFollowing() const {
    for (const Gauge* gauge :
         {&leader, &nodes_live, &nodes_down, &nodes_stopped, &nodes_left, &nodes_ahead, &namespaces,
          &watchers, &term, &epoch, &frozen, &store_is_old, &drains.nodes, &drains.slots})
      gauge->Set(0);
  }

  const Gauge nodes_live, nodes_down, nodes_stopped, nodes_left, nodes_ahead, namespaces, watchers,
      term, epoch, frozen, store_is_old, disk_free_bytes;
  const Counter views_published, slots_moved, heartbeats, requests_refused, store_errors,
      strangers_refused;
  const DrainMetrics drains;
  const Gauge leader;
  const Counter elections, etcd_errors;
  const Histogram etcd_write_seconds;

 private:
  static Gauge Nodes(MetricsRegistry* r, const char* state) {
    return r->AddGauge("ems_controller_nodes",
                       "Servers known by name: live hold a lease, down lost it, stopped ended in "
                       "order and keep what their SSD has, left ended in order, ahead wait for an "
                       "operator",
                       {{"state", state}});
  }
};

}  // namespace ems::controller
