#include "bench/contender.h"

namespace ems::bench {

std::string_view OpName(LocalOp op) {
  switch (op) {
    case LocalOp::kGet:
      return "Get";
    case LocalOp::kGetChecked:
      return "GetChecked";
    case LocalOp::kGetView:
      return "GetView";
    case LocalOp::kExists:
      return "Exists";
    case LocalOp::kLookup:
      return "Lookup";
    case LocalOp::kPut:
      return "Put";
    case LocalOp::kPutBatch:
      return "PutBatch";
    case LocalOp::kPutOrdinary:
      return "PutOrdinary";
  }
  return "?";
}

std::string_view OpTitle(LocalOp op) {
  switch (op) {
    case LocalOp::kGet:
      return "Get: copy a value out, no checksum";
    case LocalOp::kGetChecked:
      return "Get, checksum always verified";
    case LocalOp::kGetView:
      return "GetView: a value in place, and letting it go";
    case LocalOp::kExists:
      return "Exists: one key";
    case LocalOp::kLookup:
      return "Lookup: 1,000 keys in one call";
    case LocalOp::kPut:
      return "Put from registered memory";
    case LocalOp::kPutBatch:
      return "Put from registered memory, several in a call";
    case LocalOp::kPutOrdinary:
      return "Put from ordinary memory";
  }
  return "?";
}

Status Contender::View(uint64_t /*object*/, const std::function<void(ConstBytes)>& /*look*/) {
  return Error(StatusCode::kUnimplemented, "{} shows nothing in place", name());
}

}  // namespace ems::bench
