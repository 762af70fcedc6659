#include "pdc/rpc/internal/wire.h"

#include <algorithm>

#include "common/bytes.h"

namespace ems::pdc::rpc {
namespace {

using std::chrono::microseconds;

constexpr size_t kMessageCharsMax = 1024;
constexpr uint32_t kLastCode = static_cast<uint32_t>(StatusCode::kUnauthenticated);

uint64_t Micros(Duration time) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<microseconds>(time).count()));
}

Duration TimeOf(uint64_t us) {
  constexpr uint64_t kMost = std::chrono::duration_cast<microseconds>(kTaskTimeMax).count();
  return microseconds(std::min(us, kMost));
}

void ToProto(const SamplerOptions& sampler, v1::Sampler* proto) {
  proto->set_temperature(sampler.temperature);
  proto->set_top_p(sampler.top_p);
  proto->set_seed(sampler.seed);
}

SamplerOptions SamplerOf(const v1::Sampler& proto) {
  return {.temperature = proto.temperature(), .top_p = proto.top_p(), .seed = proto.seed()};
}

// What both kinds of requests have.
template <typename Task, typename Request>
void PutCommon(const Task& task, Request* proto) {
  proto->mutable_prompt()->Add(task.prompt.begin(), task.prompt.end());
  ToProto(task.sampler, proto->mutable_sampler());
  proto->set_cache_salt(task.cache_salt);
  proto->set_time_us(Micros(task.deadline.Remaining()));
}

template <typename Task, typename Request>
Status TakeCommon(const Request& proto, const InstanceInfo& instance, Task* task) {
  task->sampler = SamplerOf(proto.sampler());
  const std::span prompt(proto.prompt().data(), static_cast<size_t>(proto.prompt_size()));
  EMS_RETURN_IF_ERROR(CheckPrompt(prompt, task->sampler, proto.cache_salt(), instance));
  task->prompt.assign(prompt.begin(), prompt.end());
  task->cache_salt = proto.cache_salt();
  task->deadline = Deadline::After(TimeOf(proto.time_us()));
  return OkStatus();
}

}  // namespace

void ToProto(const InstanceInfo& info, v1::Instance* proto) {
  proto->set_name(info.name);
  proto->set_model(info.model);
  proto->set_fingerprint(info.fingerprint);
  proto->set_block_tokens(info.block_tokens);
  proto->set_storage(info.storage == KvStorage::kBf16 ? v1::KV_STORAGE_BF16 : v1::KV_STORAGE_F32);
  proto->set_vocab(info.vocab);
  proto->set_positions_max(info.positions_max);
  proto->set_context_tokens(info.context_tokens);
  proto->set_incarnation(info.incarnation);
  proto->set_ring_socket_path(info.ring_socket_path);
}

Result<InstanceInfo> InstanceOf(const v1::Instance& proto) {
  if (proto.storage() != v1::KV_STORAGE_BF16 && proto.storage() != v1::KV_STORAGE_F32)
    return Error(StatusCode::kInvalidArgument, "an instance says of itself: KV of storage {}",
                 static_cast<int>(proto.storage()));
  InstanceInfo info{
      .name = proto.name(),
      .model = proto.model(),
      .fingerprint = proto.fingerprint(),
      .block_tokens = proto.block_tokens(),
      .storage = proto.storage() == v1::KV_STORAGE_BF16 ? KvStorage::kBf16 : KvStorage::kF32,
      .vocab = proto.vocab(),
      .positions_max = proto.positions_max(),
      .context_tokens = proto.context_tokens(),
      .incarnation = proto.incarnation(),
      .ring_socket_path = proto.ring_socket_path()};
  EMS_RETURN_IF_ERROR(CheckInstance(info));
  return info;
}

void ToProto(const Status& status, v1::Failure* proto) {
  proto->set_code(static_cast<uint32_t>(status.code()));
  proto->set_message(std::string(Message(status).substr(0, kMessageCharsMax)));
}

Status StatusOf(const v1::Failure& proto) {
  if (proto.code() == 0) return OkStatus();
  const std::string message = Printable(proto.message(), kMessageCharsMax);
  if (proto.code() > kLastCode)
    return Error(StatusCode::kInternal, "status {}: {}", proto.code(), message);
  return Error(static_cast<StatusCode>(proto.code()), std::string_view(message));
}

Status CheckPrompt(std::span<const TokenId> prompt, const SamplerOptions& sampler,
                   std::string_view salt, const InstanceInfo& instance) {
  if (salt.size() > kSaltBytesMax)
    return Error(StatusCode::kInvalidArgument, "a cache salt of {} bytes: {} at most", salt.size(),
                 kSaltBytesMax);
  return pdc::CheckPrompt(prompt, instance.positions_max, instance.vocab, sampler);
}

void ToProto(const PrefillTask& task, uint64_t session, v1::RunRequest* proto) {
  proto->set_session(session);
  proto->set_id(task.id);
  proto->set_draft(task.draft);
  PutCommon(task, proto);
}

Result<PrefillTask> TaskOf(const v1::RunRequest& proto, const InstanceInfo& instance) {
  if (proto.id() >> 48 != 0)
    return Error(StatusCode::kInvalidArgument, "no hand-off can have the id {}", proto.id());
  PrefillTask task;
  task.id = proto.id();
  task.draft = proto.draft();
  EMS_RETURN_IF_ERROR(TakeCommon(proto, instance, &task));
  return task;
}

void ToProto(const PrefillOutcome& outcome, v1::RunEvent::Done* proto) {
  proto->set_first(outcome.first);
  if (outcome.draft) proto->set_draft(*outcome.draft);
  proto->set_prompt_tokens(outcome.prompt_tokens);
  proto->set_cached_tokens(outcome.cached_tokens);
  proto->set_waiting_us(Micros(outcome.waiting));
  proto->set_loading_us(Micros(outcome.loading));
  proto->set_computing_us(Micros(outcome.computing));
}

Result<PrefillOutcome> OutcomeOf(const v1::RunEvent::Done& proto, size_t prompt_tokens,
                                 uint32_t vocab) {
  if (proto.first() >= vocab || (proto.has_draft() && proto.draft() >= vocab))
    return Error(StatusCode::kDataLoss, "an outcome with token {}, draft {}: {} are known",
                 proto.first(), proto.draft(), vocab);
  if (proto.prompt_tokens() != prompt_tokens || proto.cached_tokens() > prompt_tokens)
    return Error(StatusCode::kDataLoss, "an outcome of {} tokens, {} cached, of a prompt of {}",
                 proto.prompt_tokens(), proto.cached_tokens(), prompt_tokens);
  PrefillOutcome outcome;
  outcome.first = proto.first();
  if (proto.has_draft()) outcome.draft = proto.draft();
  outcome.prompt_tokens = proto.prompt_tokens();
  outcome.cached_tokens = proto.cached_tokens();
  outcome.waiting = TimeOf(proto.waiting_us());
  outcome.loading = TimeOf(proto.loading_us());
  outcome.computing = TimeOf(proto.computing_us());
  return outcome;
}

void ToProto(const DecodeTask& task, v1::GenerateRequest* proto) {
  proto->set_tokens_max(task.tokens_max);
  proto->set_stop_at_end(task.stop_at_end);
  PutCommon(task, proto);
}

Result<DecodeTask> TaskOf(const v1::GenerateRequest& proto, const InstanceInfo& instance) {
  if (proto.tokens_max() == 0) return Error(StatusCode::kInvalidArgument, "no tokens are wanted");
  DecodeTask task;
  task.tokens_max = proto.tokens_max();
  task.stop_at_end = proto.stop_at_end();
  EMS_RETURN_IF_ERROR(TakeCommon(proto, instance, &task));
  return task;
}

}  // namespace ems::pdc::rpc
