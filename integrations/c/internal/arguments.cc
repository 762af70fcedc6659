#include "integrations/c/internal/arguments.h"

#include <algorithm>

#include "common/object_key.h"

namespace ems::capi {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 47;  // of one address space

std::string OrEmpty(const char* text) { return text == nullptr ? std::string() : text; }

Duration Milliseconds(uint32_t value) { return std::chrono::milliseconds(value); }

}  // namespace

Status NotNull(const void* pointer, std::string_view name) {
  if (pointer != nullptr) [[likely]]
    return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{} is NULL", name);
}

Status InRange(uint64_t value, uint64_t least, uint64_t most, std::string_view name) {
  if (value >= least && value <= most) [[likely]]
    return OkStatus();
  return Error(StatusCode::kInvalidArgument, "{} is {}: {} to {} are allowed", name, value, least,
               most);
}

Status CheckOptionsSize(size_t size, size_t least, std::string_view type) {
  if (size >= least && size <= kOptionsBytesMax) [[likely]]
    return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "{} of {} bytes: {} to {} are allowed; {}_init sets the size", type, size, least,
               kOptionsBytesMax, type);
}

Status CheckTail(const void* options, size_t known, size_t size, std::string_view type) {
  const auto* bytes = static_cast<const std::byte*>(options);
  if (std::all_of(bytes + known, bytes + size, [](std::byte b) { return b == std::byte{0}; })) {
    return OkStatus();
  }
  return Error(StatusCode::kInvalidArgument,
               "{} asks for something that this library (ABI {}) does not know", type,
               ems_abi_version());
}

ems_client_options DefaultClientOptions() {
  const ClientOptions sdk;
  const auto ms = [](Duration d) {
    return static_cast<uint32_t>(d / std::chrono::milliseconds(1));
  };
  ems_client_options options{};
  options.size = sizeof(options);
  options.controller = "127.0.0.1:7400";
  options.name_space = "default";
  options.transport = EMS_TRANSPORT_AUTO;
  options.connections_per_server_max = sdk.connections_per_server_max;
  options.async_threads = sdk.async_threads;
  options.async_queue_max = sdk.async_queue_max;
  options.connect_timeout_ms = ms(sdk.connect_timeout);
  options.op_timeout_ms = ms(sdk.op_timeout);
  options.start_timeout_ms = ms(sdk.start_timeout);
  options.staging_bytes = sdk.staging_bytes;
  return options;
}

ems_context_options DefaultContextOptions() {
  ems_context_options options{};
  options.size = sizeof(options);
  options.tp_size = 1;
  options.pp_size = 1;
  options.block_tokens = 128;
  options.timeout_ms = 1000;
  return options;
}

ems_call_options DefaultCallOptions() {
  ems_call_options options{};
  options.size = sizeof(options);
  return options;
}

Result<ClientOptions> ToClientOptions(const ems_client_options* given) {
  EMS_ASSIGN_OR_RETURN(const ems_client_options c,
                       ReadOptions(given, DefaultClientOptions(), "ems_client_options"));
  EMS_RETURN_IF_ERROR(NotNull(c.controller, "controller"));
  EMS_RETURN_IF_ERROR(NotNull(c.name_space, "name_space"));
  EMS_RETURN_IF_ERROR(InRange(c.transport, 0, EMS_TRANSPORT_UNIX, "transport"));
  EMS_RETURN_IF_ERROR(InRange(c.connections_per_server_max, 1, 1024, "connections_per_server_max"));
  EMS_RETURN_IF_ERROR(InRange(c.async_threads, 1, 256, "async_threads"));
  EMS_RETURN_IF_ERROR(InRange(c.async_queue_max, 1, 1 << 20, "async_queue_max"));
  EMS_RETURN_IF_ERROR(InRange(c.connect_timeout_ms, 1, 60'000, "connect_timeout_ms"));
  EMS_RETURN_IF_ERROR(InRange(c.op_timeout_ms, 1, 30'000, "op_timeout_ms"));
  EMS_RETURN_IF_ERROR(InRange(c.start_timeout_ms, 1, 60'000, "start_timeout_ms"));
  EMS_RETURN_IF_ERROR(InRange(c.reserved, 0, 0, "reserved"));
  EMS_RETURN_IF_ERROR(InRange(c.staging_bytes, 4 * kKiB, uint64_t{1} << 40, "staging_bytes"));
  ClientOptions options;
  options.controller = c.controller;
  options.name_space = c.name_space;
  options.transport = static_cast<TransportChoice>(c.transport);
  options.connections_per_server_max = c.connections_per_server_max;
  options.async_threads = c.async_threads;
  options.async_queue_max = c.async_queue_max;
  options.connect_timeout = Milliseconds(c.connect_timeout_ms);
  options.op_timeout = Milliseconds(c.op_timeout_ms);
  options.start_timeout = Milliseconds(c.start_timeout_ms);
  options.staging_bytes = c.staging_bytes;
  options.shm_token = OrEmpty(c.shm_token);
  return options;
}

Result<Durability> ToDurability(uint32_t given) {
  EMS_RETURN_IF_ERROR(InRange(given, 0, EMS_DURABILITY_SSD, "durability"));
  return static_cast<Durability>(given);
}

Result<CallChoice> ToCallChoice(const ems_call_options* given) {
  if (given == nullptr) return CallChoice{};
  EMS_ASSIGN_OR_RETURN(const ems_call_options c,
                       ReadOptions(given, DefaultCallOptions(), "ems_call_options"));
  EMS_RETURN_IF_ERROR(InRange(c.flags, 0, EMS_OVERWRITE | EMS_NO_TOUCH, "flags"));
  EMS_RETURN_IF_ERROR(InRange(c.verify, 0, EMS_VERIFY_NEVER, "verify"));
  CallChoice choice;
  EMS_ASSIGN_OR_RETURN(choice.put.durability, ToDurability(c.durability));
  choice.put.overwrite = (c.flags & EMS_OVERWRITE) != 0;
  choice.get.touch = (c.flags & EMS_NO_TOUCH) == 0;
  choice.get.verify = static_cast<Verify>(c.verify);
  choice.SetTimeout(Milliseconds(c.timeout_ms));
  if (c.route_key != nullptr || c.route_key_size > 0) {
    EMS_ASSIGN_OR_RETURN(choice.put.route_key, ToKey(c.route_key, c.route_key_size, "route_key"));
    choice.get.route_key = choice.put.route_key;
  }
  return choice;
}

Result<std::string_view> ToKey(const void* key, size_t size, std::string_view name) {
  EMS_RETURN_IF_ERROR(NotNull(key, name));
  if (size < 1 || size > kKeyBytesMax) {
    return Error(StatusCode::kInvalidArgument, "{} of {} bytes: 1 to {} are allowed", name, size,
                 kKeyBytesMax);
  }
  return std::string_view(static_cast<const char*>(key), size);
}

Result<uint64_t> CheckPieces(const ems_pieces* pieces, std::string_view name) {
  EMS_RETURN_IF_ERROR(NotNull(pieces, name));
  if (pieces->iov == nullptr || pieces->count < 1 || pieces->count > EMS_PIECES_MAX) {
    return Error(StatusCode::kInvalidArgument, "{} has {} pieces at {}: 1 to {} are allowed", name,
                 pieces->count, pieces->iov == nullptr ? "NULL" : "an address", EMS_PIECES_MAX);
  }
  uint64_t total = 0;
  for (size_t i = 0; i < pieces->count; ++i) {
    const ems_iov& piece = pieces->iov[i];
    if (piece.size > 0 && piece.base == nullptr) {
      return Error(StatusCode::kInvalidArgument, "piece {} of {} has {} bytes at NULL", i, name,
                   piece.size);
    }
    if (piece.size > kBytesMax || total + piece.size > kBytesMax) {
      return Error(StatusCode::kInvalidArgument,
                   "piece {} of {} has {} bytes: no memory is so large", i, name, piece.size);
    }
    total += piece.size;
  }
  if (total == 0) return Error(StatusCode::kInvalidArgument, "{} has 0 bytes", name);
  return total;
}

static_assert(EMS_KEY_BYTES_MAX == kKeyBytesMax);
static_assert(static_cast<int>(TransportChoice::kAuto) == EMS_TRANSPORT_AUTO &&
              static_cast<int>(TransportChoice::kTcp) == EMS_TRANSPORT_TCP &&
              static_cast<int>(TransportChoice::kUnix) == EMS_TRANSPORT_UNIX);
static_assert(static_cast<int>(Durability::kDefault) == EMS_DURABILITY_DEFAULT &&
              static_cast<int>(Durability::kDram) == EMS_DURABILITY_DRAM &&
              static_cast<int>(Durability::kSsd) == EMS_DURABILITY_SSD);
static_assert(static_cast<int>(Verify::kDefault) == EMS_VERIFY_DEFAULT &&
              static_cast<int>(Verify::kAlways) == EMS_VERIFY_ALWAYS &&
              static_cast<int>(Verify::kSampled) == EMS_VERIFY_SAMPLED &&
              static_cast<int>(Verify::kNever) == EMS_VERIFY_NEVER);

}  // namespace ems::capi
