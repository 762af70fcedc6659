#pragma once
// What a controller does while it leads, from the store it reads to the services it answers: all of
// a controller that is the only one.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/status.h"
#include "mp_controller/cluster_store.h"
#include "mp_controller/etcd/etcd_options.h"
#include "mp_controller/membership.h"
#include "mp_controller/rows/row_store.h"
#include "proto/cluster_metadata.h"

namespace ems {
class MetricsRegistry;
}

namespace ems::controller {

struct ControllerMetrics;

struct ControllerOptions {
  std::string listen = "127.0.0.1:0";
  std::string advertise;    // host:port for clients of the other controllers; empty: as bound
  std::string http_listen;  // empty: no HTTP
  bool page = true;         // it shows the cluster, too
  std::string page_password_file{};  // empty: to whoever reaches http_listen
  std::string data_dir;
  MembershipOptions membership;
  std::string default_namespace = "default";
  size_t watchers_max = 16384;
  Duration model_unused_max{};  // zero: versions of models stay until they are removed
  EtcdOptions etcd;
};

struct TenureStores {
  std::unique_ptr<ClusterStore> cluster;
  std::unique_ptr<RowStore> models;
};

// Threading: one thread (the owner); serves on threads of its own.
class Tenure final {
 public:
  struct Parts {
    const ControllerOptions* options;
    MetricsRegistry* registry;
    ControllerMetrics* metrics;
    FindOtherLeader other = {};  // empty: this controller always leads
  };
  // All pointers must outlive the object.
  explicit Tenure(const Parts& parts);
  // Ends streams and calls (at most 5 s), closes the stores.
  ~Tenure();
  Tenure(const Tenure&) = delete;
  Tenure& operator=(const Tenure&) = delete;

  // Publishes the first view of a new term and serves on these addresses (host:port; `http_listen`
  // empty: no HTTP). Once. What a failed one leaves is released with the object. Errors: of the
  // stores; kUnavailable  an address cannot be bound
  Status Start(TenureStores stores, const std::string& listen, const std::string& http_listen);

  // After Start.
  int port() const;
  std::string http_address() const;  // empty: no HTTP
  ClusterId cluster() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
