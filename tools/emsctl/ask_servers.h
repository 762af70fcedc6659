#pragma once
// Asks all servers of a view for their statistics at once.
//
// Bound: kAskedMax servers, kAskingThreads of them at a time, until the deadline.
#include <memory>
#include <vector>

#include "cluster/dht_view.h"
#include "cluster/view_cache.h"
#include "common/clock.h"
#include "mp_sdk/client.h"
#include "tools/emsctl/server_counts.h"

namespace ems::emsctl {

struct Context;

inline constexpr size_t kAskedMax = 4096;
inline constexpr size_t kAskingThreads = 16;

// A client for questions that belong to no namespace: of the first one there is.
// Errors: kFailedPrecondition  there is none, or it is another cluster    others  as
// Client::Connect
Result<std::unique_ptr<Client>> ConnectToAny(const Context& context,
                                             const NamespaceTable& namespaces, Deadline deadline);
// One entry a node of `view`, in its order; each takes --timeout at most. Where there is no client
// each entry says why.
std::vector<ServerStats> AskServers(const Context& context,
                                    const Result<std::unique_ptr<Client>>& client,
                                    const DhtView& view, Deadline deadline);

}  // namespace ems::emsctl
