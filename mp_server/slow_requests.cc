#include "mp_server/slow_requests.h"

#include <fmt/format.h>

#include <string>

#include "common/logging.h"
#include "common/object_key.h"
#include "fabric/net/socket.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {
namespace {

double Ms(Duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

void SlowRequests::Log(const wire::FrameHeader& request, const fabric::Served& served) const {
  const TieredNamespace ns = store_->Open(request.ns());
  const std::string name = ns ? ns.name() : fmt::format("{}", request.namespace_id);
  const uint64_t items = wire::IsMulti(request.op) ? request.item_count : 1;
  // What clients call their objects is theirs: a hash tells one from another.
  const uint64_t key = served.key.empty() ? 0 : KeyHash(served.key).lo;
  EMS_LOG(kWarn, "mp_server",
          "{} request op={} namespace={} request={:08x} peer=\"{}\" items={} bytes_in={} "
          "bytes_out={} key_hash={:016x} ms={:.1f} waited_ms={:.1f} sending_ms={:.1f} "
          "status=\"{}\"",
          Failed(served.status) ? "failed" : "slow", wire::OpName(request.op), name,
          request.request_id, fabric::PeerText(served.socket), items, uint64_t{request.body_bytes},
          served.answer_bytes, key, Ms(served.took), Ms(served.waited), Ms(served.sending),
          wire::StatusName(served.status));
}

}  // namespace ems::server
