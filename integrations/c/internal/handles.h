#pragma once
// The objects behind the opaque handles of ems.h.
//
// Invariant: a client lives until its handle and those of its queues, contexts, views and buffers
// are gone; the last of them is dropped on a caller's thread, never on one of the client's own.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "ems_context/block_hash.h"
#include "ems_context/block_store.h"
#include "ems_context/context_cache.h"
#include "ems_context/paged_cache.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/call_queue.h"
#include "integrations/c/internal/fork_stamp.h"
#include "mp_sdk/client.h"

namespace ems::capi {

struct ClientCore {
  ClientCore(std::unique_ptr<Client> connected, Duration op)
      : client(std::move(connected)), op_timeout(op) {}

  // The time of a call that moves `bytes`, as the client counts it.
  Duration TimeoutOf(Duration wanted, uint64_t bytes) const {
    if (wanted > Duration::zero()) return wanted;
    constexpr Duration kMost = std::chrono::seconds(30);
    const Duration transfer(std::min<uint64_t>(bytes, 3'000'000'000) * 10);  // at 100 MB/s
    return std::min(op_timeout + transfer, kMost);
  }

  const ForkStamp made_here;
  const std::unique_ptr<Client> client;
  const Duration op_timeout;
};

// Shared with calls under way. Holds the client by its address alone: a call's queue holds it.
struct ContextCore {
  ContextCore(Client* client, const context::ContextCacheOptions& options,
              context::BlockHasher made, std::string layout, uint32_t ranks = 1)
      : hasher(std::move(made)),
        kv_layout(std::move(layout)),
        tp_size(ranks),
        key_size(hasher.kind() == context::HashKind::kSha256 ? 32 : 16),
        store(client),
        cache(&store, options) {}

  const context::BlockHasher hasher;
  const std::string kv_layout;  // the domain's, and so is the next
  const uint32_t tp_size;
  const size_t key_size;
  context::ClientBlockStore store;
  context::ContextCache cache;
};

// Shared with calls under way.
struct KvCore {
  KvCore(std::shared_ptr<ContextCore> of, context::KvLayout layout,
         const context::PagedOptions& options)
      : context(std::move(of)),
        paged(&context->cache, &context->store, std::move(layout), options) {}

  const std::shared_ptr<ContextCore> context;
  context::PagedCache paged;
};

// Errors: kInvalidArgument  NULL    kFailedPrecondition  of a parent process
template <typename Handle>
Status CheckHandle(const Handle* handle, std::string_view name) {
  EMS_RETURN_IF_ERROR(NotNull(handle, name));
  if (handle->core->made_here.here()) [[likely]]
    return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "{} was made before fork(): a child must connect again", name);
}

// Ends a handle. In a child of the process that made it, it is left as it is: its threads are not
// there to be joined.
template <typename Handle>
void Destroy(Handle* handle) {
  if (handle == nullptr || !handle->core->made_here.here()) return;
  std::unique_ptr<Handle>(handle).reset();
}

}  // namespace ems::capi

struct ems_client {
  std::shared_ptr<ems::capi::ClientCore> core;
};
// The client comes first in each: it goes last.
struct ems_cq {
  std::shared_ptr<ems::capi::ClientCore> core;
  std::unique_ptr<ems::capi::CallQueue> calls;
};
struct ems_context {
  std::shared_ptr<ems::capi::ClientCore> core;
  std::shared_ptr<ems::capi::ContextCore> context;
};
struct ems_kv {
  std::shared_ptr<ems::capi::ClientCore> core;
  std::shared_ptr<ems::capi::KvCore> kv;
};
// Its call uses the KvCore, which stays until it is over.
struct ems_layer_load {
  std::shared_ptr<ems::capi::ClientCore> core;
  std::shared_ptr<ems::capi::KvCore> kv;
  ems::context::LayerLoad load;
};
struct ems_view {
  std::shared_ptr<ems::capi::ClientCore> core;
  ems::ObjectView view;
};
struct ems_buffer {
  std::shared_ptr<ems::capi::ClientCore> core;
  ems::StagingBuffer buffer;
};
