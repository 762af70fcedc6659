#include "tools/emsctl/ask_servers.h"

#include <algorithm>
#include <utility>

#include "common/thread_pool.h"
#include "tools/emsctl/context.h"

namespace ems::emsctl {

Result<std::unique_ptr<Client>> ConnectToAny(const Context& context,
                                             const NamespaceTable& namespaces, Deadline deadline) {
  if (namespaces.by_id.empty()) {
    return Error(
        StatusCode::kFailedPrecondition,
        "there is no namespace to ask servers with; make one with `emsctl namespace create "
        "NAME`");
  }
  ClientOptions options;
  options.controller = context.controller;
  options.name_space = namespaces.by_id.begin()->second.name;
  options.start_timeout = std::min(context.timeout(), deadline.Remaining());
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(options));
  EMS_RETURN_IF_ERROR(context.joined->Join(client->views().cluster()));
  return client;
}

std::vector<ServerStats> AskServers(const Context& context,
                                    const Result<std::unique_ptr<Client>>& client,
                                    const DhtView& view, Deadline deadline) {
  const Status none = client.ok() ? Error(StatusCode::kDeadlineExceeded, "not asked: out of time")
                                  : client.status();
  std::vector<ServerStats> servers;
  for (const NodeInfo& node : view.nodes()) servers.push_back({.name = node.name, .json = none});
  if (!client.ok()) return servers;
  {
    ThreadPool pool("ask", std::clamp<size_t>(servers.size(), 1, kAskingThreads), kAskedMax);
    for (ServerStats& one : servers) {
      const bool asked = pool.TrySubmit([&, server = &one] {
        const Duration left = std::min(context.timeout(), deadline.Remaining());
        if (left > Duration::zero()) server->json = (*client)->ServerStats(server->name, left);
      });
      if (!asked) break;
    }
  }  // all have answered
  return servers;
}

}  // namespace ems::emsctl
