#include "pdc/rpc/instance.h"

#include <random>

namespace ems::pdc {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr uint32_t kBlockTokensMax = 4096;

}  // namespace

uint64_t NewIncarnation() {
  std::random_device device;
  uint64_t number = 0;
  while (number == 0) number = uint64_t{device()} << 32 | device();
  return number;
}

Status CheckInstance(const InstanceInfo& info) {
  const auto wrong = [](std::string_view what) {
    return Error(StatusCode::kInvalidArgument, "an instance says of itself: {}", what);
  };
  if (info.name.empty() || info.name.size() > kNameBytesMax) return wrong("no name, or a long one");
  if (info.model.size() > kNameBytesMax) return wrong("a long name of its model");
  if (info.fingerprint.empty() || info.fingerprint.size() > kNameBytesMax)
    return wrong("no fingerprint, or a long one");
  if (info.block_tokens == 0 || info.block_tokens > kBlockTokensMax)
    return wrong(fmt::format("blocks of {} tokens", info.block_tokens));
  if (info.vocab == 0 || info.vocab > kVocabMax)
    return wrong(fmt::format("a vocabulary of {} tokens", info.vocab));
  if (info.positions_max == 0 || info.positions_max > kPositionsMax)
    return wrong(fmt::format("{} positions", info.positions_max));
  if (info.context_tokens == 0 || info.context_tokens > info.positions_max)
    return wrong(fmt::format("a context of {} tokens", info.context_tokens));
  if (info.incarnation == 0) return wrong("no incarnation");
  if (!info.ring_socket_path.empty() &&
      (info.ring_socket_path.front() != '/' || info.ring_socket_path.size() > kNameBytesMax))
    return wrong("a socket without an absolute path, or a long one");
  return OkStatus();
}

Status CheckFits(const InstanceInfo& info, const InstanceInfo& own) {
  if (info.fingerprint != own.fingerprint)
    return Error(StatusCode::kFailedPrecondition,
                 "serves another model: {} with fingerprint {}, expected is {}", info.model,
                 info.fingerprint, own.fingerprint);
  if (info.storage != own.storage)
    return Error(StatusCode::kFailedPrecondition, "stores KV as {}, expected is {}",
                 NameOf(info.storage), NameOf(own.storage));
  if (info.block_tokens != own.block_tokens)
    return Error(StatusCode::kFailedPrecondition, "has KV blocks of {} tokens, expected are {}",
                 info.block_tokens, own.block_tokens);
  if (info.context_tokens < own.context_tokens)
    return Error(StatusCode::kFailedPrecondition,
                 "has KV for {} tokens, requests here may have {}: it needs the same kv.bytes",
                 info.context_tokens, own.context_tokens);
  return OkStatus();
}

}  // namespace ems::pdc
