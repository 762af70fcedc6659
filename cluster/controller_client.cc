// Invariant: the watch thread applies a delta only to the view that the same stream sent before;
// anything else ends the stream and the next one starts with a whole view. Bound: one stream, one
// message of at most 4 MiB at a time.
#include "cluster/controller_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "cluster/leader_calls.h"
#include "cluster/namespace_codec.h"
#include "common/check.h"
#include "common/guarded.h"
#include "common/logging.h"
#include "common/retry.h"
#include "common/thread_pool.h"
#include "proto/controller.grpc.pb.h"
#include "proto/status_codec.h"

namespace ems {
namespace {

constexpr int kMessageBytesMax = 4 << 20;
// How long a watch looks for a controller that is connected before it tries one that is not.
constexpr Duration kPickMost = std::chrono::seconds(2);

// What the last view of one stream was, and how an update changes it.
Result<ViewCache::View> NextView(const ViewCache::View& last, const v1::ClusterUpdate& update) {
  switch (update.view_change_case()) {
    case v1::ClusterUpdate::kView:
      return DhtView::FromProto(update.view());
    case v1::ClusterUpdate::kDelta:
      if (last == nullptr) {
        return Error(StatusCode::kFailedPrecondition, "a delta came before a whole view");
      }
      return DhtView::Apply(*last, update.delta());
    case v1::ClusterUpdate::VIEW_CHANGE_NOT_SET:
      break;
  }
  return last;
}

}  // namespace

struct ControllerClient::Impl {
  struct Watch {
    bool started = false;
    bool stopping = false;
    std::shared_ptr<grpc::ClientContext> context;
  };

  Impl(std::string_view address_in, std::string watcher_in, ViewCache* joined)
      : watcher(std::move(watcher_in)), calls(address_in, kMessageBytesMax, joined) {
    for (size_t i = 0; i < calls.channels().size(); ++i)
      stubs.push_back(v1::Controller::NewStub(calls.channels().channel(i)));
  }

  // One unary call, its error prefixed with the address.
  template <typename Request, typename Reply, typename Method>
  Status Call(Method method, const Request& request, Reply* reply, Deadline deadline,
              bool reads = false) {
    const auto call = [&](size_t controller, grpc::ClientContext* context) {
      return (stubs[controller].get()->*method)(context, request, reply);
    };
    return calls.Call(deadline, call, reads);
  }
  template <typename Request, typename Reply, typename Method>
  Status Read(Method method, const Request& request, Reply* reply, Deadline deadline) {
    return Call(method, request, reply, deadline, /*reads=*/true);
  }

  // One that is answered with a namespace.
  template <typename Request, typename Method>
  Result<NamespaceInfo> CallForNamespace(Method method, const Request& request, Deadline deadline) {
    v1::Namespace reply;
    EMS_RETURN_IF_ERROR(Call(method, request, &reply, deadline));
    return FromProto(reply);
  }

  // True when the cache changed. `last` is the last view of this stream.
  Result<bool> Take(const v1::ClusterUpdate& update, ViewCache* cache, ViewCache::View* last) {
    bool changed = false;
    EMS_RETURN_IF_ERROR(cache->Join(ClusterId(update.cluster())));
    EMS_ASSIGN_OR_RETURN(ViewCache::View next, NextView(*last, update));
    // Before the view: whoever acts on a view finds the namespaces that came with it.
    if (update.has_namespaces()) {
      EMS_ASSIGN_OR_RETURN(auto table, FromProto(update.namespaces()));
      changed = cache->Install(std::move(table));
    }
    if (next != *last) {
      *last = next;
      if (cache->Install(std::move(next))) changed = true;
    }
    return changed;
  }

  // Null when the watch is stopping.
  std::shared_ptr<grpc::ClientContext> NewWatchContext() {
    auto context = std::make_shared<grpc::ClientContext>();
    // Waiting for the connection also drives it: a controller that is back is found within the
    // reconnect back-off, not when some other call happens to poll the channel. Of several
    // controllers one that is connected is asked.
    context->set_wait_for_ready(stubs.size() == 1);
    auto locked = watch.Lock();
    if (locked->stopping) return nullptr;
    locked->context = context;
    return context;
  }

  // Runs one stream to its end; true when it delivered something.
  bool RunStream(grpc::ClientContext* context, ViewCache* cache,
                 const std::function<void()>& on_update) {
    v1::WatchRequest request;
    request.set_watcher(watcher);
    const size_t controller = calls.channels().Pick(Deadline::After(kPickMost));
    const std::string& address = calls.channels().address(controller);
    auto reader = stubs[controller]->Watch(context, request);
    v1::ClusterUpdate update;
    ViewCache::View last;
    Status fault = OkStatus();
    bool delivered = false;
    while (fault.ok() && reader->Read(&update)) {
      Result<bool> changed = Take(update, cache, &last);
      if (!changed.ok()) {
        fault = changed.status();
        context->TryCancel();
        break;
      }
      delivered = true;
      reported_fault.clear();
      if (*changed && on_update) on_update();
    }
    const Status end = FromGrpc(reader->Finish());
    calls.OnFailed(controller, end, *context);
    if (!fault.ok()) {
      // Another cluster's controller says the same each second.
      std::string reason = ToString(fault);
      if (reason != reported_fault)
        EMS_LOG(kWarn, "view", "watch restarted controller={} reason=\"{}\"", address, reason);
      reported_fault = std::move(reason);
    } else if (delivered && !stop.IsSet()) {
      EMS_LOG(kInfo, "view", "watch ended controller={} reason=\"{}\"", address, ToString(end));
    }
    return delivered && fault.ok();
  }

  void WatchLoop(ViewCache* cache, const std::function<void()>& on_update) {
    Backoff backoff(Hash64(AsBytes(watcher), reinterpret_cast<uintptr_t>(this)));
    while (auto context = NewWatchContext()) {
      if (RunStream(context.get(), cache, on_update)) backoff.Reset();
      if (stop.WaitFor(backoff.Next())) return;
    }
  }

  void StopWatch() {
    stop.Set();
    std::shared_ptr<grpc::ClientContext> context;
    {
      auto locked = watch.Lock();
      locked->stopping = true;
      context = locked->context;
    }
    if (context != nullptr) context->TryCancel();
    thread.Join();
  }

  const std::string watcher;
  LeaderCalls calls;
  std::vector<std::unique_ptr<v1::Controller::Stub>> stubs;  // one for each controller
  StopFlag stop;
  Guarded<Watch> watch;
  std::string reported_fault;  // of the watch thread
  Thread thread;
};

ControllerClient::ControllerClient(const std::string& address, std::string watcher,
                                   ViewCache* joined)
    : impl_(std::make_unique<Impl>(address, std::move(watcher), joined)) {}

ControllerClient::~ControllerClient() { impl_->StopWatch(); }

void ControllerClient::StartWatch(ViewCache* cache, std::function<void()> on_update) {
  if (!impl_->calls.channels().fault().ok()) return;
  EMS_CHECK(cache != nullptr);
  {
    auto watch = impl_->watch.Lock();
    EMS_CHECK(!std::exchange(watch->started, true), "StartWatch is called once");
  }
  impl_->thread = Thread("ems-watch", [impl = impl_.get(), cache, notify = std::move(on_update)] {
    impl->WatchLoop(cache, notify);
  });
}

Status ControllerClient::Register(const v1::RegisterRequest& request, v1::RegisterReply* reply,
                                  Deadline deadline) {
  return impl_->Call(&v1::Controller::Stub::Register, request, reply, deadline);
}

Status ControllerClient::Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatReply* reply,
                                   Deadline deadline) {
  return impl_->Call(&v1::Controller::Stub::Heartbeat, request, reply, deadline);
}

Status ControllerClient::Leave(NodeId node, uint64_t boot_id, bool keeps_slots, Deadline deadline) {
  v1::LeaveRequest request;
  request.set_node_id(node.value());
  request.set_boot_id(boot_id);
  request.set_keeps_slots(keeps_slots);
  v1::LeaveReply reply;
  return impl_->Call(&v1::Controller::Stub::Leave, request, &reply, deadline);
}

Status ControllerClient::Refresh(ViewCache* cache, Deadline deadline) {
  v1::ClusterUpdate update;
  EMS_RETURN_IF_ERROR(
      impl_->Read(&v1::Controller::Stub::GetCluster, v1::GetClusterRequest(), &update, deadline));
  ViewCache::View none;
  return impl_->Take(update, cache, &none).status();
}

Result<NamespaceInfo> ControllerClient::CreateNamespace(const NamespaceInfo& wanted,
                                                        Deadline deadline) {
  v1::CreateNamespaceRequest request;
  request.set_name(wanted.name);
  ToProto(wanted, request.mutable_policy());
  return impl_->CallForNamespace(&v1::Controller::Stub::CreateNamespace, request, deadline);
}

Result<NamespaceInfo> ControllerClient::GetNamespace(const std::string& name, Deadline deadline) {
  v1::GetNamespaceRequest request;
  request.set_name(name);
  v1::Namespace reply;
  EMS_RETURN_IF_ERROR(impl_->Read(&v1::Controller::Stub::GetNamespace, request, &reply, deadline));
  return FromProto(reply);
}

Result<std::vector<NamespaceInfo>> ControllerClient::ListNamespaces(Deadline deadline) {
  v1::ListNamespacesReply reply;
  EMS_RETURN_IF_ERROR(impl_->Read(&v1::Controller::Stub::ListNamespaces,
                                  v1::ListNamespacesRequest(), &reply, deadline));
  std::vector<NamespaceInfo> list;
  for (const v1::Namespace& ns : reply.namespaces()) {
    EMS_ASSIGN_OR_RETURN(NamespaceInfo info, FromProto(ns));
    list.push_back(std::move(info));
  }
  return list;
}

Result<std::optional<HitCurve>> ControllerClient::GetHitCurve(const std::string& name,
                                                              Deadline deadline) {
  v1::ListNamespacesReply reply;
  EMS_RETURN_IF_ERROR(impl_->Read(&v1::Controller::Stub::ListNamespaces,
                                  v1::ListNamespacesRequest(), &reply, deadline));
  const auto named = std::ranges::find(reply.namespaces(), name,
                                       [](const v1::Namespace& one) { return one.name(); });
  if (named == reply.namespaces().end())
    return Error(StatusCode::kNotFound, "no namespace {}", Printable(name));
  for (const v1::HitCurve& proto : reply.curves()) {
    if (proto.namespace_id() == named->id() && proto.generation() == named->generation())
      return FromProto(proto);
  }
  return std::nullopt;
}

Result<NamespaceInfo> ControllerClient::UpdateNamespace(const NamespaceInfo& wanted,
                                                        Deadline deadline) {
  v1::UpdateNamespaceRequest request;
  request.set_name(wanted.name);
  ToProto(wanted, request.mutable_policy());
  return impl_->CallForNamespace(&v1::Controller::Stub::UpdateNamespace, request, deadline);
}

Status ControllerClient::DeleteNamespace(const std::string& name, Deadline deadline) {
  v1::DeleteNamespaceRequest request;
  request.set_name(name);
  v1::DeleteNamespaceReply reply;
  return impl_->Call(&v1::Controller::Stub::DeleteNamespace, request, &reply, deadline);
}

Status ControllerClient::ListNodes(v1::ListNodesReply* reply, Deadline deadline) {
  return impl_->Read(&v1::Controller::Stub::ListNodes, v1::ListNodesRequest(), reply, deadline);
}

Status ControllerClient::SetNode(const std::string& name, uint64_t dram_bytes, Deadline deadline) {
  v1::SetNodeRequest request;
  request.set_name(name);
  request.set_dram_bytes(dram_bytes);
  v1::SetNodeReply reply;
  return impl_->Call(&v1::Controller::Stub::SetNode, request, &reply, deadline);
}

Status ControllerClient::DrainNode(const std::string& name, bool cancel, Deadline deadline) {
  v1::DrainNodeRequest request;
  request.set_name(name);
  request.set_cancel(cancel);
  v1::DrainNodeReply reply;
  return impl_->Call(&v1::Controller::Stub::DrainNode, request, &reply, deadline);
}

Status ControllerClient::RemoveNode(const std::string& name, Deadline deadline) {
  v1::RemoveNodeRequest request;
  request.set_name(name);
  v1::RemoveNodeReply reply;
  return impl_->Call(&v1::Controller::Stub::RemoveNode, request, &reply, deadline);
}

Status ControllerClient::AcceptAhead(Deadline deadline) {
  v1::AcceptAheadReply reply;
  return impl_->Call(&v1::Controller::Stub::AcceptAhead, v1::AcceptAheadRequest(), &reply,
                     deadline);
}

Status ControllerClient::AcceptLoss(Deadline deadline) {
  v1::AcceptLossReply reply;
  return impl_->Call(&v1::Controller::Stub::AcceptLoss, v1::AcceptLossRequest(), &reply, deadline);
}

Status ControllerClient::ListEvents(const v1::ListEventsRequest& request,
                                    v1::ListEventsReply* reply, Deadline deadline) {
  return impl_->Read(&v1::Controller::Stub::ListEvents, request, reply, deadline);
}

}  // namespace ems
