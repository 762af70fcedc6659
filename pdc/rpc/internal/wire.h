#pragma once
// Tasks, outcomes and errors ⇄ messages of proto/pdc.proto. What comes from the other process is
// checked here: token ids, sizes, numbers.
#include <span>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "pdc/decode/decode_peer.h"
#include "pdc/prefill/prefill_worker.h"
#include "pdc/rpc/instance.h"
#include "proto/pdc.pb.h"

namespace ems::pdc::rpc {

// A prompt of kPositionsMax tokens fits.
inline constexpr int kMessageBytesMax = 8 << 20;
inline constexpr size_t kSaltBytesMax = 4096;
// Longer deadlines are taken for this.
inline constexpr Duration kTaskTimeMax = std::chrono::hours(1);

void ToProto(const InstanceInfo& info, v1::Instance* proto);
// Errors: kInvalidArgument  as CheckInstance
Result<InstanceInfo> InstanceOf(const v1::Instance& proto);

void ToProto(const Status& status, v1::Failure* proto);
Status StatusOf(const v1::Failure& proto);

// What an instance would refuse: on both sides.
// Errors: kInvalidArgument  no prompt, a prompt of more than positions_max tokens, unknown tokens,
// options of the sampler, a long salt
Status CheckPrompt(std::span<const TokenId> prompt, const SamplerOptions& sampler,
                   std::string_view salt, const InstanceInfo& instance);

void ToProto(const PrefillTask& task, uint64_t session, v1::RunRequest* proto);
// Errors: kInvalidArgument  as CheckPrompt, and an id that no hand-off can have
Result<PrefillTask> TaskOf(const v1::RunRequest& proto, const InstanceInfo& instance);

void ToProto(const PrefillOutcome& outcome, v1::RunEvent::Done* proto);
// Of a prompt of so many tokens. Errors: kDataLoss  it makes no sense
Result<PrefillOutcome> OutcomeOf(const v1::RunEvent::Done& proto, size_t prompt_tokens,
                                 uint32_t vocab);

void ToProto(const DecodeTask& task, v1::GenerateRequest* proto);
// Without an id. Errors: kInvalidArgument  as CheckPrompt, and no tokens wanted
Result<DecodeTask> TaskOf(const v1::GenerateRequest& proto, const InstanceInfo& instance);

}  // namespace ems::pdc::rpc
