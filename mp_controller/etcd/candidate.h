#pragma once
// One of several controllers: their store is in etcd, and one of them leads (election.h). While
// this one does, its owner runs a tenure; otherwise it answers who does (follower_service.h), on
// the same addresses.
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/status.h"
#include "mp_controller/etcd/etcd_options.h"
#include "mp_controller/rows/row_store.h"
#include "proto/cluster_metadata.h"

namespace ems {
class MetricsRegistry;
}

namespace ems::controller {

// Threading: one thread (the owner); serves on threads of its own.
class Candidate final {
 public:
  // What a tenure is made of.
  struct Lead {
    std::unique_ptr<RowStore> cluster_rows;
    std::unique_ptr<RowStore> model_rows;
    std::string listen, http_listen;  // host:port; `http_listen` empty: no HTTP
    FindOtherLeader other;            // for whom it answers
  };
  struct Parts {
    EtcdOptions etcd;
    std::string data_dir;
    std::string listen, http_listen;
    std::string advertise;            // host:port for clients of others; empty: as bound
    const MetricsRegistry* registry;  // shown by a follower; must outlive the object
    // On one thread. Begins a tenure; the cluster that the store is of. Errors: as Election
    std::function<Result<ClusterId>(Lead lead)> lead;
    // On the same one. Ends what `lead` began, or what it left when it failed.
    std::function<void()> end;
    // On any thread: each call that writes, and each call of the election that has failed.
    std::function<void(Duration took)> written = {};
    std::function<void()> on_error = {};
  };
  explicit Candidate(Parts parts);
  // Ends the tenure, lets the lease go.
  ~Candidate();
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  // Serves, as a follower at first. An etcd that does not answer is waited for. Once.
  // Errors: of StoreMemory::Open; of EtcdClient::Check, but for kUnavailable and kDeadlineExceeded;
  // kUnavailable  an address cannot be bound
  Status Start();

  // After Start. Not OK: it takes no part any more, and an operator has to act.
  Status fault() const;
  int port() const;
  std::string http_address() const;  // empty: no HTTP

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
