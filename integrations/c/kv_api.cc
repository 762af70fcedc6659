// ems.h: paged KV.
#include <cstring>

#include "integrations/c/ems.h"
#include "integrations/c/internal/kv_call.h"
#include "integrations/c/internal/kv_registration.h"
#include "integrations/c/internal/run_call.h"

namespace ems::capi {
namespace {

Status Fingerprint(const ems_kv_tensor* tensors, size_t count, const ems_kv_options* options,
                   char* text, size_t capacity, size_t* length) {
  EMS_RETURN_IF_ERROR(NotNull(length, "length"));
  *length = 0;
  EMS_RETURN_IF_ERROR(NotNull(text, "text"));
  EMS_ASSIGN_OR_RETURN(const KvChoice choice, ToKvChoice(options));
  EMS_ASSIGN_OR_RETURN(const context::KvLayout layout,
                       ToKvLayout(tensors, count, choice.layer_groups));
  const std::string made = layout.Fingerprint();
  *length = made.size();
  if (capacity <= made.size()) {
    return Error(StatusCode::kOutOfRange, "a text of {} bytes and NUL, but room for {}",
                 made.size(), capacity);
  }
  std::memcpy(text, made.c_str(), made.size() + 1);
  return OkStatus();
}

Status Register(ems_context* context, const ems_kv_tensor* tensors, size_t count,
                const ems_kv_options* options, ems_kv** kv) {
  EMS_RETURN_IF_ERROR(NotNull(kv, "kv"));
  *kv = nullptr;
  EMS_RETURN_IF_ERROR(CheckHandle(context, "context"));
  EMS_ASSIGN_OR_RETURN(const KvChoice choice, ToKvChoice(options));
  EMS_ASSIGN_OR_RETURN(context::KvLayout layout, ToKvLayout(tensors, count, choice.layer_groups));
  const ContextCore& core = *context->context;
  if (const std::string made = layout.Fingerprint(); made != core.kv_layout) {
    return Error(StatusCode::kInvalidArgument,
                 "the context's kv_layout is \"{}\", that of the tensors \"{}\": make the context "
                 "with what ems_kv_fingerprint says",
                 core.kv_layout, made);
  }
  if (choice.paged.shared_by_tp && core.tp_size != 1) {
    return Error(StatusCode::kInvalidArgument,
                 "shared_by_tp, but the context is of tp_size {}: no other rank has its keys; make "
                 "it with tp_rank 0 and tp_size 1",
                 core.tp_size);
  }
  *kv = std::make_unique<ems_kv>(
            ems_kv{context->core,
                   std::make_shared<KvCore>(context->context, std::move(layout), choice.paged)})
            .release();
  return OkStatus();
}

ems_status Load(ems_kv* kv, const KvArguments& arguments, size_t* leading) {
  if (leading != nullptr) *leading = 0;
  const CallerCodes codes{arguments.codes, arguments.blocks.count};
  return RunNow(
      kv, "kv", codes,
      [&]() -> Result<std::unique_ptr<KvCall>> {
        EMS_RETURN_IF_ERROR(Told(NotNull(leading, "leading"), codes));
        return KvCall::Make(kv->kv, KvKind::kLoad, arguments);
      },
      [&](const KvCall&, const Outcome& outcome) { *leading = outcome.value; });
}

// `saved` may be NULL.
ems_status Save(ems_kv* kv, const KvArguments& arguments, ems_kv_saved* saved) {
  if (saved != nullptr) *saved = {};
  return RunNow(
      kv, "kv", {arguments.codes, arguments.blocks.count},
      [&] { return KvCall::Make(kv->kv, KvKind::kSave, arguments); },
      [&](const KvCall& call, const Outcome&) {
        if (saved != nullptr) *saved = call.saved();
      });
}

ems_status Later(ems_kv* kv, ems_cq* queue, uint64_t tag, KvKind kind,
                 const KvArguments& arguments) {
  return RunLater(kv, "kv", queue, tag, {arguments.codes, arguments.blocks.count},
                  [&] { return KvCall::Make(kv->kv, kind, arguments); });
}

// Runs work({keys, slots of one group}).
template <typename Work>
ems_status WithOneGroup(const void* keys, size_t count, const int64_t* slots, size_t slot_count,
                        const Work& work) {
  const ems_kv_slots group{.slots = slots, .slot_count = slot_count, .tokens = nullptr};
  return work(ems_kv_blocks{.keys = keys, .count = count, .groups = &group, .group_count = 1});
}

// Runs work(*blocks).
template <typename Work>
ems_status WithBlocks(const ems_kv_blocks* blocks, const Work& work) {
  if (blocks == nullptr) return Fail(EMS_INVALID_ARGUMENT, "blocks is NULL");
  return work(*blocks);
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces

ems_status ems_kv_options_init(ems_kv_options* options, size_t size) {
  return ReportOf([&] { return InitOptions(options, size, DefaultKvOptions(), "ems_kv_options"); });
}

ems_status ems_kv_fingerprint(const ems_kv_tensor* tensors, size_t count, char* text,
                              size_t capacity, size_t* length) {
  return ems_kv_fingerprint_with(tensors, count, nullptr, text, capacity, length);
}

ems_status ems_kv_fingerprint_with(const ems_kv_tensor* tensors, size_t count,
                                   const ems_kv_options* options, char* text, size_t capacity,
                                   size_t* length) {
  return ReportOf([&] { return Fingerprint(tensors, count, options, text, capacity, length); });
}

ems_status ems_kv_register(ems_context* context, const ems_kv_tensor* tensors, size_t count,
                           ems_kv** kv) {
  return ems_kv_register_with(context, tensors, count, nullptr, kv);
}

ems_status ems_kv_register_with(ems_context* context, const ems_kv_tensor* tensors, size_t count,
                                const ems_kv_options* options, ems_kv** kv) {
  return ReportOf([&] { return Register(context, tensors, count, options, kv); });
}

void ems_kv_unregister(ems_kv* kv) { Destroy(kv); }

ems_status ems_kv_load(ems_kv* kv, const void* keys, size_t count, const int64_t* slots,
                       size_t slot_count, const ems_call_options* options, ems_status* codes,
                       size_t* leading) {
  return WithOneGroup(keys, count, slots, slot_count, [&](const ems_kv_blocks& blocks) {
    return Load(kv, {.blocks = blocks, .options = options, .codes = codes}, leading);
  });
}

ems_status ems_kv_save(ems_kv* kv, const void* keys, size_t count, const int64_t* slots,
                       size_t slot_count, const ems_call_options* options, ems_status* codes,
                       size_t* stored) {
  return WithOneGroup(keys, count, slots, slot_count, [&](const ems_kv_blocks& blocks) {
    ems_kv_saved saved{};
    const ems_status code =
        Save(kv, {.blocks = blocks, .options = options, .codes = codes}, &saved);
    if (stored != nullptr) *stored = saved.stored;
    return code;
  });
}

ems_status ems_kv_load_submit(ems_kv* kv, ems_cq* queue, uint64_t tag, const void* keys,
                              size_t count, const int64_t* slots, size_t slot_count,
                              const ems_call_options* options, ems_status* codes) {
  return WithOneGroup(keys, count, slots, slot_count, [&](const ems_kv_blocks& blocks) {
    return Later(kv, queue, tag, KvKind::kLoad,
                 {.blocks = blocks, .options = options, .codes = codes});
  });
}

ems_status ems_kv_save_submit(ems_kv* kv, ems_cq* queue, uint64_t tag, const void* keys,
                              size_t count, const int64_t* slots, size_t slot_count,
                              const ems_call_options* options, ems_status* codes) {
  return WithOneGroup(keys, count, slots, slot_count, [&](const ems_kv_blocks& blocks) {
    return Later(kv, queue, tag, KvKind::kSave,
                 {.blocks = blocks, .options = options, .codes = codes});
  });
}

ems_status ems_kv_load_blocks(ems_kv* kv, const ems_kv_blocks* blocks,
                              const ems_call_options* options, ems_status* codes, size_t* leading) {
  return WithBlocks(blocks, [&](const ems_kv_blocks& given) {
    return Load(kv, {.blocks = given, .options = options, .codes = codes}, leading);
  });
}

ems_status ems_kv_save_blocks(ems_kv* kv, const ems_kv_blocks* blocks, uint32_t phase,
                              const ems_call_options* options, ems_status* codes,
                              ems_kv_saved* saved) {
  return WithBlocks(blocks, [&](const ems_kv_blocks& given) {
    return Save(kv, {.blocks = given, .phase = phase, .options = options, .codes = codes}, saved);
  });
}

ems_status ems_kv_load_blocks_submit(ems_kv* kv, ems_cq* queue, uint64_t tag,
                                     const ems_kv_blocks* blocks, const ems_call_options* options,
                                     ems_status* codes) {
  return WithBlocks(blocks, [&](const ems_kv_blocks& given) {
    return Later(kv, queue, tag, KvKind::kLoad,
                 {.blocks = given, .options = options, .codes = codes});
  });
}

ems_status ems_kv_save_blocks_submit(ems_kv* kv, ems_cq* queue, uint64_t tag,
                                     const ems_kv_blocks* blocks, uint32_t phase,
                                     const ems_call_options* options, ems_status* codes) {
  return WithBlocks(blocks, [&](const ems_kv_blocks& given) {
    return Later(kv, queue, tag, KvKind::kSave,
                 {.blocks = given, .phase = phase, .options = options, .codes = codes});
  });
}
