// ems.h: prefix caching of KV blocks.
#include <cstring>

#include "integrations/c/ems.h"
#include "integrations/c/internal/context_call.h"
#include "integrations/c/internal/run_call.h"

namespace ems::capi {
namespace {

constexpr size_t kListMax = 4096;

Result<context::KeyDomain> ToDomain(const ems_context_options& c) {
  EMS_RETURN_IF_ERROR(NotNull(c.model, "model"));
  EMS_RETURN_IF_ERROR(NotNull(c.dtype, "dtype"));
  EMS_RETURN_IF_ERROR(NotNull(c.kv_layout, "kv_layout"));
  context::KeyDomain domain;
  domain.model = c.model;
  domain.dtype = c.dtype;
  domain.kv_layout = c.kv_layout;
  domain.tp_rank = c.tp_rank;
  domain.tp_size = c.tp_size;
  domain.pp_rank = c.pp_rank;
  domain.pp_size = c.pp_size;
  if (c.lora != nullptr) domain.lora = c.lora;
  if (c.cache_salt != nullptr) domain.cache_salt = c.cache_salt;
  EMS_RETURN_IF_ERROR(InRange(c.multimodal_count, 0, kListMax, "multimodal_count"));
  EMS_RETURN_IF_ERROR(InRange(c.custom_count, 0, kListMax, "custom_count"));
  if (c.multimodal_count > 0)
    EMS_RETURN_IF_ERROR(NotNull(c.multimodal_hashes, "multimodal_hashes"));
  if (c.custom_count > 0) EMS_RETURN_IF_ERROR(NotNull(c.custom, "custom"));
  for (size_t i = 0; i < c.multimodal_count; ++i) {
    EMS_RETURN_IF_ERROR(NotNull(c.multimodal_hashes[i], fmt::format("multimodal_hashes[{}]", i)));
    domain.multimodal_hashes.emplace_back(c.multimodal_hashes[i]);
  }
  for (size_t i = 0; i < c.custom_count; ++i) {
    EMS_RETURN_IF_ERROR(NotNull(c.custom[i].name, fmt::format("custom[{}].name", i)));
    EMS_RETURN_IF_ERROR(NotNull(c.custom[i].value, fmt::format("custom[{}].value", i)));
    domain.custom.emplace_back(c.custom[i].name, c.custom[i].value);
  }
  return domain;
}

Status Create(const ems_client& client, const ems_context_options* options, ems_context** context) {
  EMS_RETURN_IF_ERROR(NotNull(options, "options"));
  EMS_ASSIGN_OR_RETURN(const ems_context_options c,
                       ReadOptions(options, DefaultContextOptions(), "ems_context_options"));
  EMS_ASSIGN_OR_RETURN(const context::KeyDomain domain, ToDomain(c));
  EMS_RETURN_IF_ERROR(InRange(c.hash_kind, 0, EMS_HASH_XXH3_128, "hash_kind"));
  EMS_RETURN_IF_ERROR(InRange(c.timeout_ms, 1, 30'000, "timeout_ms"));
  EMS_ASSIGN_OR_RETURN(const Durability durability, ToDurability(c.durability));
  const auto kind =
      c.hash_kind == EMS_HASH_SHA256 ? context::HashKind::kSha256 : context::HashKind::kXxh3;
  EMS_ASSIGN_OR_RETURN(context::BlockHasher hasher,
                       context::BlockHasher::Make(domain, kind, c.block_tokens));
  const context::ContextCacheOptions cache{.block_tokens = c.block_tokens,
                                           .timeout = std::chrono::milliseconds(c.timeout_ms),
                                           .durability = durability,
                                           .batch = {}};
  *context = std::make_unique<ems_context>(
                 ems_context{client.core, std::make_shared<ContextCore>(client.core->client.get(),
                                                                        cache, std::move(hasher),
                                                                        c.kv_layout, c.tp_size)})
                 .release();
  return OkStatus();
}

Status HashTokens(const ContextCore& core, const int32_t* tokens, size_t token_count,
                  const void* parent, void* keys, size_t capacity, size_t* count) {
  EMS_RETURN_IF_ERROR(NotNull(tokens, "tokens"));
  EMS_RETURN_IF_ERROR(InRange(token_count, 1, SIZE_MAX / sizeof(int32_t), "token_count"));
  *count = token_count / core.hasher.block_tokens();
  if (keys == nullptr && capacity == 0) return OkStatus();
  EMS_RETURN_IF_ERROR(NotNull(keys, "keys"));
  if (capacity < *count) {
    return Error(StatusCode::kOutOfRange, "{} keys, but room for {}", *count, capacity);
  }
  const std::string_view before(static_cast<const char*>(parent),
                                parent == nullptr ? 0 : core.key_size);
  char* at = static_cast<char*>(keys);
  for (const std::string& key : core.hasher.HashTokens({tokens, token_count}, before)) {
    std::memcpy(at, key.data(), core.key_size);
    at += core.key_size;
  }
  return OkStatus();
}

// `value`: the outcome's, of look-ups and loads. `stored`: of saves; may be NULL.
ems_status Now(ems_context* context, ContextKind kind, const ContextArguments& arguments,
               size_t* value, size_t* stored) {
  if (value != nullptr) *value = 0;
  if (stored != nullptr) *stored = 0;
  const CallerCodes codes{arguments.codes, arguments.count};
  return RunNow(
      context, "context", codes,
      [&]() -> Result<std::unique_ptr<ContextCall>> {
        if (kind != ContextKind::kSave) EMS_RETURN_IF_ERROR(Told(NotNull(value, "leading"), codes));
        return ContextCall::Make(context->context, kind, arguments);
      },
      [&](const ContextCall& call, const Outcome& outcome) {
        if (value != nullptr) *value = outcome.value;
        if (stored != nullptr) *stored = call.stored_blocks();
      });
}

ems_status Later(ems_context* context, ems_cq* queue, uint64_t tag, ContextKind kind,
                 const ContextArguments& arguments) {
  return RunLater(context, "context", queue, tag, {arguments.codes, arguments.count},
                  [&] { return ContextCall::Make(context->context, kind, arguments); });
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Status;

ems_status ems_context_options_init(ems_context_options* options, size_t size) {
  return ReportOf(
      [&] { return InitOptions(options, size, DefaultContextOptions(), "ems_context_options"); });
}

ems_status ems_context_create(ems_client* client, const ems_context_options* options,
                              ems_context** context) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(context, "context"));
    *context = nullptr;
    EMS_RETURN_IF_ERROR(CheckHandle(client, "client"));
    return Create(*client, options, context);
  });
}

void ems_context_destroy(ems_context* context) { Destroy(context); }

size_t ems_context_key_size(const ems_context* context) {
  return context == nullptr ? 0 : context->context->key_size;
}

ems_status ems_context_hash_tokens(const ems_context* context, const int32_t* tokens,
                                   size_t token_count, const void* parent, void* keys,
                                   size_t capacity, size_t* count) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = 0;
    EMS_RETURN_IF_ERROR(CheckHandle(context, "context"));
    return HashTokens(*context->context, tokens, token_count, parent, keys, capacity, count);
  });
}

ems_status ems_context_own_key(const ems_context* context, const void* name, size_t name_size,
                               void* key) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(context, "context"));
    EMS_RETURN_IF_ERROR(NotNull(key, "key"));
    EMS_ASSIGN_OR_RETURN(const std::string_view own, ToKey(name, name_size, "name"));
    EMS_ASSIGN_OR_RETURN(const std::string made, context->context->hasher.OwnKey(own));
    std::memcpy(key, made.data(), context->context->key_size);
    return ems::OkStatus();
  });
}

ems_status ems_context_lookup(ems_context* context, const void* keys, size_t count,
                              const ems_call_options* options, ems_status* codes, size_t* leading) {
  return Now(context, ContextKind::kLookup, {keys, count, nullptr, options, codes}, leading,
             nullptr);
}

ems_status ems_context_load(ems_context* context, const void* keys, size_t count,
                            const ems_pieces* into, const ems_call_options* options,
                            ems_status* codes, size_t* leading) {
  return Now(context, ContextKind::kLoad, {keys, count, into, options, codes}, leading, nullptr);
}

ems_status ems_context_save(ems_context* context, const void* keys, size_t count,
                            const ems_pieces* blocks, const ems_call_options* options,
                            ems_status* codes, size_t* stored) {
  return Now(context, ContextKind::kSave, {keys, count, blocks, options, codes}, nullptr, stored);
}

ems_status ems_context_lookup_submit(ems_context* context, ems_cq* queue, uint64_t tag,
                                     const void* keys, size_t count,
                                     const ems_call_options* options, ems_status* codes) {
  return Later(context, queue, tag, ContextKind::kLookup, {keys, count, nullptr, options, codes});
}

ems_status ems_context_load_submit(ems_context* context, ems_cq* queue, uint64_t tag,
                                   const void* keys, size_t count, const ems_pieces* into,
                                   const ems_call_options* options, ems_status* codes) {
  return Later(context, queue, tag, ContextKind::kLoad, {keys, count, into, options, codes});
}

ems_status ems_context_save_submit(ems_context* context, ems_cq* queue, uint64_t tag,
                                   const void* keys, size_t count, const ems_pieces* blocks,
                                   const ems_call_options* options, ems_status* codes) {
  return Later(context, queue, tag, ContextKind::kSave, {keys, count, blocks, options, codes});
}
