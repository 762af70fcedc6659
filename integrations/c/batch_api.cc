// ems.h: batches, completion queues, and batches that are submitted to them.
#include <span>

#include "integrations/c/ems.h"
#include "integrations/c/internal/batch_call.h"
#include "integrations/c/internal/run_call.h"

namespace ems::capi {
namespace {

constexpr uint32_t kDepthMax = 1 << 20;

ems_status Now(ems_client* client, BatchKind kind, const BatchArguments& arguments) {
  return RunNow(
      client, "client", {arguments.codes, arguments.count},
      [&] { return BatchCall::Make(client->core.get(), kind, arguments, false); },
      [](const BatchCall&, const Outcome&) {});
}

ems_status Later(ems_cq* queue, uint64_t tag, BatchKind kind, const BatchArguments& arguments) {
  return RunLater(queue, "queue", queue, tag, {arguments.codes, arguments.count},
                  [&] { return BatchCall::Make(queue->core.get(), kind, arguments, true); });
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Status;

ems_status ems_put_batch(ems_client* client, const ems_item* items, size_t count,
                         const ems_call_options* options, ems_status* codes) {
  return Now(client, BatchKind::kPut, {items, count, options, codes, nullptr});
}

ems_status ems_get_batch(ems_client* client, const ems_item* items, size_t count,
                         const ems_call_options* options, ems_status* codes, uint64_t* lengths) {
  return Now(client, BatchKind::kGet, {items, count, options, codes, lengths});
}

ems_status ems_exists_batch(ems_client* client, const ems_item* items, size_t count,
                            const ems_call_options* options, ems_status* codes) {
  return Now(client, BatchKind::kExists, {items, count, options, codes, nullptr});
}

ems_status ems_remove_batch(ems_client* client, const ems_item* items, size_t count,
                            const ems_call_options* options, ems_status* codes) {
  return Now(client, BatchKind::kRemove, {items, count, options, codes, nullptr});
}

// --- Completion queue

ems_status ems_cq_create(ems_client* client, uint32_t depth, ems_cq** queue) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(queue, "queue"));
    *queue = nullptr;
    EMS_RETURN_IF_ERROR(CheckHandle(client, "client"));
    EMS_RETURN_IF_ERROR(InRange(depth, 1, kDepthMax, "depth"));
    ems::Client* const threads = client->core->client.get();
    EMS_ASSIGN_OR_RETURN(std::unique_ptr<CallQueue> calls,
                         CallQueue::Create(depth, [threads](std::function<void()>&& work) {
                           return threads->Submit(std::move(work));
                         }));
    *queue = std::make_unique<ems_cq>(ems_cq{client->core, std::move(calls)}).release();
    return ems::OkStatus();
  });
}

int ems_cq_fd(const ems_cq* queue) {
  return queue == nullptr ? -1 : queue->calls->completions().fd();
}

ems_status ems_cq_poll(ems_cq* queue, ems_completion* completions, size_t max, size_t* count) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = 0;
    EMS_RETURN_IF_ERROR(CheckHandle(queue, "queue"));
    EMS_RETURN_IF_ERROR(NotNull(completions, "completions"));
    EMS_RETURN_IF_ERROR(InRange(max, 1, SIZE_MAX / sizeof(ems_completion), "max"));
    Status failed;
    *count = queue->calls->completions().Poll(std::span(completions, max), &failed);
    Report(failed);  // its text alone: polling went well
    return ems::OkStatus();
  });
}

void ems_cq_destroy(ems_cq* queue) { Destroy(queue); }

ems_status ems_put_submit(ems_cq* queue, uint64_t tag, const ems_item* items, size_t count,
                          const ems_call_options* options, ems_status* codes) {
  return Later(queue, tag, BatchKind::kPut, {items, count, options, codes, nullptr});
}

ems_status ems_get_submit(ems_cq* queue, uint64_t tag, const ems_item* items, size_t count,
                          const ems_call_options* options, ems_status* codes, uint64_t* lengths) {
  return Later(queue, tag, BatchKind::kGet, {items, count, options, codes, lengths});
}

ems_status ems_exists_submit(ems_cq* queue, uint64_t tag, const ems_item* items, size_t count,
                             const ems_call_options* options, ems_status* codes) {
  return Later(queue, tag, BatchKind::kExists, {items, count, options, codes, nullptr});
}

ems_status ems_remove_submit(ems_cq* queue, uint64_t tag, const ems_item* items, size_t count,
                             const ems_call_options* options, ems_status* codes) {
  return Later(queue, tag, BatchKind::kRemove, {items, count, options, codes, nullptr});
}
