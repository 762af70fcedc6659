// Any bytes, as what processes say to each other of prompts (pdc.proto) and of models
// (model.proto), and as the rows and states that are kept of models: refused by name, or within the
// stated bounds and the same after another round trip.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "ems_model/model_info.h"
#include "model_files/format/file_sum.h"
#include "model_files/format/manifest.h"
#include "mp_controller/models/model_rows.h"
#include "pdc/rpc/instance.h"
#include "pdc/rpc/internal/wire.h"
#include "pdc/rpc/ring_greeting.h"
#include "proto/model.pb.h"
#include "proto/pdc.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace ems {
namespace {

using testing::FuzzInput;

bool IsArgument(const Status& status) { return status.code() == StatusCode::kInvalidArgument; }

// ---- pdc.proto

void CheckSampler(const pdc::SamplerOptions& sampler) {
  EMS_CHECK(sampler.temperature >= 0 && sampler.temperature <= 100);
  EMS_CHECK(sampler.top_p > 0 && sampler.top_p <= 1);
}

template <typename Task>
void CheckTask(const Task& task, const pdc::InstanceInfo& instance) {
  EMS_CHECK(!task.prompt.empty() && task.prompt.size() <= instance.positions_max);
  for (const pdc::TokenId token : task.prompt) EMS_CHECK(token < instance.vocab);
  EMS_CHECK(task.cache_salt.size() <= pdc::rpc::kSaltBytesMax);
  EMS_CHECK(task.deadline.Remaining() <= pdc::rpc::kTaskTimeMax);
  CheckSampler(task.sampler);
}

void RunInstance(const std::string& bytes) {
  pdc::v1::Instance proto;
  if (!proto.ParseFromString(bytes)) return;
  const auto info = pdc::rpc::InstanceOf(proto);
  if (!info.ok()) {
    EMS_CHECK(IsArgument(info.status()));
    return;
  }
  EMS_CHECK(pdc::CheckInstance(*info).ok() && info->vocab <= pdc::kVocabMax);
  EMS_CHECK(info->context_tokens <= info->positions_max);
  pdc::v1::Instance out;
  pdc::rpc::ToProto(*info, &out);
  EMS_CHECK(pdc::rpc::InstanceOf(out).ok());
  pdc::InstanceInfo expected{.fingerprint = info->fingerprint,
                             .block_tokens = info->block_tokens,
                             .storage = info->storage,
                             .context_tokens = info->context_tokens};
  EMS_CHECK(pdc::CheckFits(*info, expected).ok());
  ++expected.block_tokens;
  EMS_CHECK(!pdc::CheckFits(*info, expected).ok());
}

void RunTasks(const std::string& bytes) {
  pdc::InstanceInfo instance;
  instance.name = "fuzz";
  instance.vocab = 1000;
  instance.positions_max = 64;
  pdc::v1::RunRequest run;
  if (run.ParseFromString(bytes)) {
    const auto task = pdc::rpc::TaskOf(run, instance);
    if (task.ok()) {
      CheckTask(*task, instance);
      EMS_CHECK(task->id >> 48 == 0 && task->id == run.id() && task->draft == run.draft());
      pdc::v1::RunRequest again;
      pdc::rpc::ToProto(*task, run.session(), &again);
      EMS_CHECK(again.time_us() <= run.time_us() && again.session() == run.session());
      const auto second = pdc::rpc::TaskOf(again, instance);
      EMS_CHECK(second.ok() && second->prompt == task->prompt);
      EMS_CHECK(second->cache_salt == task->cache_salt);
    } else {
      EMS_CHECK(IsArgument(task.status()));
    }
  }
  pdc::v1::GenerateRequest generate;
  if (!generate.ParseFromString(bytes)) return;
  const auto task = pdc::rpc::TaskOf(generate, instance);
  if (!task.ok()) {
    EMS_CHECK(IsArgument(task.status()));
    return;
  }
  CheckTask(*task, instance);
  EMS_CHECK(task->tokens_max > 0);
  pdc::v1::GenerateRequest again;
  pdc::rpc::ToProto(*task, &again);
  const auto second = pdc::rpc::TaskOf(again, instance);
  EMS_CHECK(second.ok() && second->prompt == task->prompt);
  EMS_CHECK(second->tokens_max == task->tokens_max && second->stop_at_end == task->stop_at_end);
}

void RunOutcome(FuzzInput* input) {
  const uint64_t prompt = input->TakeUpTo(300);
  const std::string bytes(AsText(input->TakeRest()));
  constexpr uint32_t kVocab = 1000;
  pdc::v1::RunEvent event;
  if (!event.ParseFromString(bytes)) return;
  const auto outcome = pdc::rpc::OutcomeOf(event.done(), prompt, kVocab);
  if (outcome.ok()) {
    EMS_CHECK(outcome->first < kVocab && outcome->draft.value_or(0) < kVocab);
    EMS_CHECK(outcome->prompt_tokens == prompt && outcome->cached_tokens <= prompt);
    for (const Duration time : {outcome->waiting, outcome->loading, outcome->computing})
      EMS_CHECK(time >= Duration(0) && time <= pdc::rpc::kTaskTimeMax);
  } else {
    EMS_CHECK(outcome.status().code() == StatusCode::kDataLoss);
  }
  for (const pdc::v1::Failure* failure : {&event.failed(), &event.sent()}) {
    const Status status = pdc::rpc::StatusOf(*failure);
    EMS_CHECK(status.ok() == (failure->code() == 0));
    // Nothing in it moves a terminal's cursor or ends a line of a log.
    for (const char c : Message(status)) EMS_CHECK(static_cast<unsigned char>(c) >= 0x20);
    pdc::v1::Failure again;
    pdc::rpc::ToProto(status, &again);
    EMS_CHECK(pdc::rpc::StatusOf(again).code() == status.code());
  }
}

void RunGreeting(FuzzInput* input) {
  auto greeting = input->Take<pdc::RingGreeting>();
  const auto incarnation = input->Take<uint64_t>();
  if (incarnation % 2 == 0) greeting.magic = pdc::RingGreeting::kMagic;
  const Status checked = pdc::CheckGreeting(greeting, incarnation);
  if (!checked.ok()) return;
  EMS_CHECK(greeting.magic == pdc::RingGreeting::kMagic && greeting.session != 0);
  EMS_CHECK(greeting.incarnation == incarnation);
}

// ---- model.proto

bool IsPath(std::string_view path) {
  return !path.empty() && path.front() != '/' && path.back() != '/' &&
         ("/" + std::string(path) + "/").find("/../") == std::string::npos &&
         path.find("//") == std::string_view::npos;
}

void CheckSound(const model::Manifest& manifest) {
  EMS_CHECK(model::CheckManifest(manifest).ok());
  EMS_CHECK(manifest.blocks.size() <= model::kManifestBlocksMax && !manifest.files.empty());
  uint64_t covered = 0;
  for (const model::ManifestBlock& block : manifest.blocks) {
    EMS_CHECK(block.file < manifest.files.size() && block.bytes > 0);
    EMS_CHECK(block.bytes <= manifest.block_bytes);
    EMS_CHECK(block.offset + block.bytes <= manifest.files[block.file].bytes);
    covered += block.bytes;
  }
  EMS_CHECK(covered == manifest.bytes());
  for (const model::ManifestFile& file : manifest.files) {
    EMS_CHECK(IsPath(file.path));
    if (!file.sum.empty()) EMS_CHECK(model::ParseFileSum(file.sum, file.bytes).ok());
  }
}

void RunManifest(const std::string& bytes) {
  v1::ModelManifest proto;
  if (!proto.ParseFromString(bytes)) return;
  for (int fixed = 0; fixed < 2; ++fixed) {
    const auto manifest = model::FromProto(proto);
    if (manifest.ok()) {
      CheckSound(*manifest);
      v1::ModelManifest out;
      model::ToProto(*manifest, &out);
      const auto again = model::FromProto(out);
      EMS_CHECK(again.ok() && *again == *manifest);
      return;
    }
    EMS_CHECK(IsArgument(manifest.status()));
    // Again with what mutations seldom get right: names, and a route for each block of a file.
    proto.set_model("m");
    proto.set_version("1");
    proto.set_name_space("ns");
    proto.mutable_source()->set_url("file:///models");
    proto.set_block_bytes(model::kBlockBytesMin);
    const int blocks = proto.block_lengths_size();
    if (proto.files_size() > 0) {
      uint64_t before = 0;
      for (int i = 0; i + 1 < proto.files_size(); ++i) before += proto.files(i).blocks();
      if (before <= static_cast<uint64_t>(blocks))
        proto.mutable_files(proto.files_size() - 1)
            ->set_blocks(static_cast<uint32_t>(static_cast<uint64_t>(blocks) - before));
    }
    proto.mutable_block_routes()->resize(static_cast<size_t>(blocks) * sizeof(model::BlockRoute));
  }
}

void RunModelStatus(const std::string& bytes) {
  v1::ModelStatus status;
  if (!status.ParseFromString(bytes)) return;
  const model::ModelInfo info = model::FromProto(status);
  EMS_CHECK(info.age >= Duration(0) && info.unused >= Duration(0));
  EMS_CHECK(info.job.elapsed >= Duration(0));
  EMS_CHECK(info.job.error.ok() == (status.job().error_code() == 0));
  EMS_CHECK(model::JobStateName(info.job.state) != "unknown");
  EMS_CHECK(!model::FirstReadName(info.source.first_read).empty());
  const auto name = model::ModelName::Parse(info.name.model);
  if (name.ok()) EMS_CHECK(model::ModelName::Parse(name->Text()).ok());
}

void RunSum(FuzzInput* input) {
  const auto bytes = input->Take<uint16_t>();
  const std::string text(AsText(input->TakeRest()));
  for (const uint64_t file_bytes : {uint64_t{bytes}, UINT64_MAX}) {
    const auto sum = model::ParseFileSum(text, file_bytes);
    if (!sum.ok()) continue;
    const auto again = model::ParseFileSum(sum->Text(), file_bytes);
    EMS_CHECK(again.ok() && *again == *sum);
  }
  if (!model::FileHasher::Offered().ok()) return;
  for (const uint64_t part_bytes : {uint64_t{0}, uint64_t{1} + bytes}) {
    const model::FileSum sum{.part_bytes = part_bytes, .parts = 1, .hex = {}};
    // In two parts: the same sum.
    model::FileHasher whole(sum), parts(sum);
    const ConstBytes all = AsBytes(text);
    whole.Update(all);
    parts.Update(all.first(all.size() / 3));
    parts.Update(all.subspan(all.size() / 3));
    EMS_CHECK(parts.Finish() == whole.Finish());
  }
}

void RunRows(FuzzInput* input) {
  const std::string_view text = input->TakeText(20);
  if (const auto id = controller::ParseModelId(text); id.ok())
    EMS_CHECK(controller::ParseModelId(controller::ModelKey("", *id)).value() == *id);
  if (const auto name = controller::ParseDigestRowName(text); name.ok()) {
    const std::string key = controller::DigestKey(name->id, name->first);
    const auto again = controller::ParseDigestRowName(
        std::string_view(key).substr(controller::kDigestPrefix.size()));
    EMS_CHECK(again.ok() && again->id == name->id && again->first == name->first);
  }
  const std::string_view row = AsText(input->TakeRest());
  std::string again;
  const Status walked =
      controller::ForEachDigest(row, [&](uint32_t block, const model::BlockDigest& digest) {
        controller::AppendDigest(block, digest, &again);
        return again.size() < 2000 ? OkStatus() : Error(StatusCode::kCancelled, "enough");
      });
  EMS_CHECK(row.starts_with(again));
  EMS_CHECK(!walked.ok() ||
            row.size() - again.size() < sizeof(uint32_t) + sizeof(model::BlockDigest));
}

}  // namespace
}  // namespace ems

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // a line for each string that is no UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ems::testing::FuzzInput input(data, size);
  const auto which = input.Take<uint8_t>() % 8;
  switch (which) {
    case 0:
      ems::RunInstance(std::string(ems::AsText(input.TakeRest())));
      break;
    case 1:
      ems::RunTasks(std::string(ems::AsText(input.TakeRest())));
      break;
    case 2:
      ems::RunOutcome(&input);
      break;
    case 3:
      ems::RunGreeting(&input);
      break;
    case 4:
      ems::RunManifest(std::string(ems::AsText(input.TakeRest())));
      break;
    case 5:
      ems::RunModelStatus(std::string(ems::AsText(input.TakeRest())));
      break;
    case 6:
      ems::RunSum(&input);
      break;
    default:
      ems::RunRows(&input);
  }
  return 0;
}
