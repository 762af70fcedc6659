// ems.h: versions, connecting, single objects, views, buffers.
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "common/logging.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/handles.h"
#include "integrations/c/internal/last_error.h"

namespace ems::capi {
namespace {

// A client's call on one key: both checked, options read, before `work` runs.
template <typename Work>
ems_status OnKey(ems_client* client, const void* key, size_t key_size,
                 const ems_call_options* options, const Work& work) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(client, "client"));
    EMS_ASSIGN_OR_RETURN(const std::string_view name, ToKey(key, key_size));
    EMS_ASSIGN_OR_RETURN(CallChoice choice, ToCallChoice(options));
    return work(*client->core, name, &choice);
  });
}

Status Put(const ClientCore& core, std::string_view key, const ems_pieces* value,
           CallChoice* choice) {
  EMS_ASSIGN_OR_RETURN(const uint64_t bytes, CheckPieces(value, "value"));
  choice->SetTimeout(core.TimeoutOf(choice->timeout(), bytes));
  std::vector<ConstBytes> parts;
  return core.client->Put(key, AsBuffers<ConstBuffers>(*value, &parts), choice->put);
}

Status Get(const ClientCore& core, std::string_view key, const ems_pieces* into, size_t* length,
           CallChoice* choice) {
  EMS_RETURN_IF_ERROR(NotNull(length, "length"));
  *length = 0;
  EMS_ASSIGN_OR_RETURN(const uint64_t bytes, CheckPieces(into, "room"));
  choice->SetTimeout(core.TimeoutOf(choice->timeout(), bytes));
  std::vector<MutableBytes> parts;
  EMS_ASSIGN_OR_RETURN(
      *length, core.client->Get(key, AsBuffers<MutableBuffers>(*into, &parts), choice->get));
  return OkStatus();
}

Status GetRange(const ClientCore& core, std::string_view key, uint64_t offset,
                const ems_pieces* into, CallChoice* choice) {
  EMS_ASSIGN_OR_RETURN(const uint64_t bytes, CheckPieces(into, "room"));
  choice->SetTimeout(core.TimeoutOf(choice->timeout(), bytes));
  std::vector<MutableBytes> parts;
  return core.client->GetRange(key, offset, AsBuffers<MutableBuffers>(*into, &parts), choice->get);
}

// Allocates a handle, which the caller owns from here on.
template <typename Handle, typename... Parts>
void Give(Handle** out, Parts&&... parts) {
  *out = std::make_unique<Handle>(Handle{std::forward<Parts>(parts)...}).release();
}

ems_iov Piece(const void* data, size_t size) {
  // The one door through which C's memory loses its const; who only reads never writes.
  return {.base = const_cast<void*>(data), .size = size};
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Status;

uint32_t ems_abi_version(void) { return EMS_ABI_VERSION; }

const char* ems_version(void) { return EMS_VERSION; }

const char* ems_status_name(ems_status code) {
  static constexpr std::array kNames = {"EMS_OK",
                                        "EMS_CANCELLED",
                                        "EMS_UNKNOWN",
                                        "EMS_INVALID_ARGUMENT",
                                        "EMS_DEADLINE_EXCEEDED",
                                        "EMS_NOT_FOUND",
                                        "EMS_ALREADY_EXISTS",
                                        "EMS_PERMISSION_DENIED",
                                        "EMS_RESOURCE_EXHAUSTED",
                                        "EMS_FAILED_PRECONDITION",
                                        "EMS_ABORTED",
                                        "EMS_OUT_OF_RANGE",
                                        "EMS_UNIMPLEMENTED",
                                        "EMS_INTERNAL",
                                        "EMS_UNAVAILABLE",
                                        "EMS_DATA_LOSS",
                                        "EMS_UNAUTHENTICATED"};
  static_assert(kNames.size() == EMS_UNAUTHENTICATED + 1);
  if (code < 0 || static_cast<size_t>(code) >= kNames.size()) return "EMS_?";
  return kNames[static_cast<size_t>(code)];
}

const char* ems_last_error(void) { return LastError(); }

ems_status ems_log_level(const char* level) {
  return AtBoundary([&] {
    const Status given = NotNull(level, "level");
    return Report(given.ok() ? ems::log::Init(level) : given);
  });
}

// --- Options

ems_status ems_client_options_init(ems_client_options* options, size_t size) {
  return ReportOf(
      [&] { return InitOptions(options, size, DefaultClientOptions(), "ems_client_options"); });
}

ems_status ems_call_options_init(ems_call_options* options, size_t size) {
  return ReportOf(
      [&] { return InitOptions(options, size, DefaultCallOptions(), "ems_call_options"); });
}

// --- Connecting

ems_status ems_connect(const ems_client_options* options, ems_client** client) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(client, "client"));
    *client = nullptr;
    EMS_ASSIGN_OR_RETURN(const ems::ClientOptions wanted, ToClientOptions(options));
    EMS_ASSIGN_OR_RETURN(auto connected, ems::Client::Connect(wanted));
    Give(client, std::make_shared<ClientCore>(std::move(connected), wanted.op_timeout));
    return ems::OkStatus();
  });
}

void ems_client_destroy(ems_client* client) { Destroy(client); }

ems_status ems_client_metrics(ems_client* client, char* into, size_t size, size_t* length) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(client, "client"));
    EMS_RETURN_IF_ERROR(NotNull(length, "length"));
    const std::string text = ems::PrometheusText(client->core->client->stats());
    *length = text.size();
    if (text.size() > size) {
      return ems::Error(ems::StatusCode::kOutOfRange, "a text of {} bytes, room for {}",
                        text.size(), size);
    }
    EMS_RETURN_IF_ERROR(NotNull(into, "into"));
    std::copy(text.begin(), text.end(), into);
    return ems::OkStatus();
  });
}

// --- One object

ems_status ems_put(ems_client* client, const void* key, size_t key_size, const void* data,
                   size_t size, const ems_call_options* options) {
  const ems_iov piece = Piece(data, size);
  const ems_pieces value{.iov = &piece, .count = 1};
  return ems_putv(client, key, key_size, &value, options);
}

ems_status ems_putv(ems_client* client, const void* key, size_t key_size, const ems_pieces* value,
                    const ems_call_options* options) {
  return OnKey(client, key, key_size, options,
               [&](const ClientCore& core, std::string_view name, CallChoice* choice) {
                 return Put(core, name, value, choice);
               });
}

ems_status ems_get(ems_client* client, const void* key, size_t key_size, void* data,
                   size_t capacity, size_t* length, const ems_call_options* options) {
  const ems_iov piece = Piece(data, capacity);
  const ems_pieces into{.iov = &piece, .count = 1};
  return ems_getv(client, key, key_size, &into, length, options);
}

ems_status ems_getv(ems_client* client, const void* key, size_t key_size, const ems_pieces* into,
                    size_t* length, const ems_call_options* options) {
  return OnKey(client, key, key_size, options,
               [&](const ClientCore& core, std::string_view name, CallChoice* choice) {
                 return Get(core, name, into, length, choice);
               });
}

ems_status ems_get_range(ems_client* client, const void* key, size_t key_size, uint64_t offset,
                         void* data, size_t size, const ems_call_options* options) {
  const ems_iov piece = Piece(data, size);
  const ems_pieces into{.iov = &piece, .count = 1};
  return ems_get_rangev(client, key, key_size, offset, &into, options);
}

ems_status ems_get_rangev(ems_client* client, const void* key, size_t key_size, uint64_t offset,
                          const ems_pieces* into, const ems_call_options* options) {
  return OnKey(client, key, key_size, options,
               [&](const ClientCore& core, std::string_view name, CallChoice* choice) {
                 return GetRange(core, name, offset, into, choice);
               });
}

ems_status ems_exists(ems_client* client, const void* key, size_t key_size,
                      const ems_call_options* options) {
  uint64_t length = 0;
  return ems_stat(client, key, key_size, &length, options);
}

ems_status ems_stat(ems_client* client, const void* key, size_t key_size, uint64_t* length,
                    const ems_call_options* options) {
  return OnKey(client, key, key_size, options,
               [&](const ClientCore& core, std::string_view name, CallChoice* choice) -> Status {
                 EMS_RETURN_IF_ERROR(NotNull(length, "length"));
                 *length = 0;
                 EMS_ASSIGN_OR_RETURN(*length, core.client->Stat(name, choice->get));
                 return ems::OkStatus();
               });
}

ems_status ems_remove(ems_client* client, const void* key, size_t key_size,
                      const ems_call_options* options) {
  return OnKey(client, key, key_size, options,
               [](const ClientCore& core, std::string_view name, CallChoice* choice) {
                 return core.client->Remove(name, choice->get);
               });
}

// --- Views and buffers

ems_status ems_get_view(ems_client* client, const void* key, size_t key_size, ems_view** view,
                        const ems_call_options* options) {
  if (view != nullptr) *view = nullptr;
  return OnKey(client, key, key_size, options,
               [&](const ClientCore& core, std::string_view name, CallChoice* choice) -> Status {
                 EMS_RETURN_IF_ERROR(NotNull(view, "view"));
                 EMS_ASSIGN_OR_RETURN(ems::ObjectView found,
                                      core.client->GetView(name, choice->get));
                 Give(view, client->core, std::move(found));
                 return ems::OkStatus();
               });
}

const void* ems_view_data(const ems_view* view) {
  return view == nullptr ? nullptr : view->view.bytes().data();
}

size_t ems_view_size(const ems_view* view) { return view == nullptr ? 0 : view->view.size_bytes(); }

int ems_view_is_mapped(const ems_view* view) {
  return view != nullptr && view->view.mapped() ? 1 : 0;
}

ems_status ems_view_verify(const ems_view* view) {
  return AtBoundary([&] {
    const Status good = CheckHandle(view, "view");
    return Report(good.ok() ? view->view.Verify() : good);
  });
}

void ems_view_release(ems_view* view) { Destroy(view); }

ems_status ems_buffer_alloc(ems_client* client, size_t size, ems_buffer** buffer) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(buffer, "buffer"));
    *buffer = nullptr;
    EMS_RETURN_IF_ERROR(CheckHandle(client, "client"));
    EMS_ASSIGN_OR_RETURN(ems::StagingBuffer made, client->core->client->AllocateBuffer(size));
    Give(buffer, client->core, std::move(made));
    return ems::OkStatus();
  });
}

void* ems_buffer_data(const ems_buffer* buffer) {
  return buffer == nullptr ? nullptr : buffer->buffer.bytes().data();
}

size_t ems_buffer_size(const ems_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->buffer.bytes().size();
}

void ems_buffer_release(ems_buffer* buffer) { Destroy(buffer); }
