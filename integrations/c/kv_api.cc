// ems.h: paged KV.
#include <algorithm>
#include <cstring>

#include "integrations/c/ems.h"
#include "integrations/c/internal/handles.h"
#include "integrations/c/internal/kv_call.h"
#include "integrations/c/internal/last_error.h"

namespace ems::capi {
namespace {

// The handle's own mistakes are told in the codes, too.
Status CheckKv(const ems_kv* kv, const KvArguments& arguments) {
  Status good = CheckHandle(kv, "kv");
  if (!good.ok() && arguments.codes != nullptr && arguments.count <= EMS_BATCH_MAX) {
    std::fill_n(arguments.codes, arguments.count, CodeOf(good));
  }
  return good;
}

// `value`: the outcome's, of loads. `stored`: of saves. Both may be NULL.
ems_status RunNow(ems_kv* kv, KvKind kind, const KvArguments& arguments, size_t* value,
                  size_t* stored) {
  if (value != nullptr) *value = 0;
  if (stored != nullptr) *stored = 0;
  return AtBoundary([&] {
    return Report([&]() -> Status {
      EMS_RETURN_IF_ERROR(CheckKv(kv, arguments));
      EMS_ASSIGN_OR_RETURN(const std::unique_ptr<KvCall> call,
                           KvCall::Make(kv->kv, kind, arguments));
      const Outcome outcome = call->Run(call->timeout());
      if (value != nullptr) *value = outcome.value;
      if (stored != nullptr) *stored = call->stored_blocks();
      return outcome.status;
    }());
  });
}

ems_status RunLater(ems_kv* kv, ems_cq* queue, uint64_t tag, KvKind kind,
                    const KvArguments& arguments) {
  return AtBoundary([&] {
    return Report([&]() -> Status {
      EMS_RETURN_IF_ERROR(CheckKv(kv, arguments));
      EMS_RETURN_IF_ERROR(CheckHandle(queue, "queue"));
      if (queue->core != kv->core) {
        return Error(StatusCode::kInvalidArgument, "queue and kv are of different clients");
      }
      EMS_ASSIGN_OR_RETURN(std::unique_ptr<KvCall> call, KvCall::Make(kv->kv, kind, arguments));
      const Duration timeout = call->timeout();
      return queue->calls->Submit(tag, timeout, std::move(call));
    }());
  });
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Status;
using ems::StatusCode;

ems_status ems_kv_fingerprint(const ems_kv_tensor* tensors, size_t count, char* text,
                              size_t capacity, size_t* length) {
  return AtBoundary([&] {
    return Report([&]() -> Status {
      EMS_RETURN_IF_ERROR(NotNull(length, "length"));
      *length = 0;
      EMS_RETURN_IF_ERROR(NotNull(text, "text"));
      EMS_ASSIGN_OR_RETURN(const ems::context::KvLayout layout, ToKvLayout(tensors, count));
      const std::string made = layout.Fingerprint();
      *length = made.size();
      if (capacity <= made.size()) {
        return ems::Error(StatusCode::kOutOfRange, "a text of {} bytes and NUL, but room for {}",
                          made.size(), capacity);
      }
      std::memcpy(text, made.c_str(), made.size() + 1);
      return ems::OkStatus();
    }());
  });
}

ems_status ems_kv_register(ems_context* context, const ems_kv_tensor* tensors, size_t count,
                           ems_kv** kv) {
  return AtBoundary([&] {
    return Report([&]() -> Status {
      EMS_RETURN_IF_ERROR(NotNull(kv, "kv"));
      *kv = nullptr;
      EMS_RETURN_IF_ERROR(CheckHandle(context, "context"));
      EMS_ASSIGN_OR_RETURN(ems::context::KvLayout layout, ToKvLayout(tensors, count));
      const std::string made = layout.Fingerprint();
      if (made != context->context->kv_layout) {
        return ems::Error(StatusCode::kInvalidArgument,
                          "the context's kv_layout is \"{}\", that of the tensors \"{}\": make the "
                          "context with what ems_kv_fingerprint says",
                          context->context->kv_layout, made);
      }
      *kv =
          std::make_unique<ems_kv>(
              ems_kv{context->core, std::make_shared<KvCore>(context->context, std::move(layout))})
              .release();
      return ems::OkStatus();
    }());
  });
}

void ems_kv_unregister(ems_kv* kv) { Destroy(kv); }

ems_status ems_kv_load(ems_kv* kv, const void* keys, size_t count, const int64_t* slots,
                       size_t slot_count, const ems_call_options* options, ems_status* codes,
                       size_t* leading) {
  if (leading == nullptr) return Fail(EMS_INVALID_ARGUMENT, "leading is NULL");
  return RunNow(kv, KvKind::kLoad, {keys, count, slots, slot_count, options, codes}, leading,
                nullptr);
}

ems_status ems_kv_save(ems_kv* kv, const void* keys, size_t count, const int64_t* slots,
                       size_t slot_count, const ems_call_options* options, ems_status* codes,
                       size_t* stored) {
  return RunNow(kv, KvKind::kSave, {keys, count, slots, slot_count, options, codes}, nullptr,
                stored);
}

ems_status ems_kv_load_submit(ems_kv* kv, ems_cq* queue, uint64_t tag, const void* keys,
                              size_t count, const int64_t* slots, size_t slot_count,
                              const ems_call_options* options, ems_status* codes) {
  return RunLater(kv, queue, tag, KvKind::kLoad, {keys, count, slots, slot_count, options, codes});
}

ems_status ems_kv_save_submit(ems_kv* kv, ems_cq* queue, uint64_t tag, const void* keys,
                              size_t count, const int64_t* slots, size_t slot_count,
                              const ems_call_options* options, ems_status* codes) {
  return RunLater(kv, queue, tag, KvKind::kSave, {keys, count, slots, slot_count, options, codes});
}
